"""A party's own TOML file, and the agreed run that it names; a real run and a rehearsal read them alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dpzv import config as configuration
from dpzv.config import Config, per_device
from dpzv.errors import ConfigError, DataError
from dpzv.runtime.device_networks import check_networks
from dpzv.validate import converted, host_and_port, toml_of

__all__ = ["PartyFile", "agreed_run", "check_agreed", "check_party", "read_party", "read_toml"]


class PartyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a party's TOML file; relative paths begin at the folder of that file."""

    run: str  # the agreed configuration: the same file at every party
    keys: str  # the folder of `dpzv keys issue`
    name: str  # the name in this party's certificate
    out: str  # this party's folder of the run
    listen: str = ""  # server: host:port to listen on
    server: str = ""  # device: host:port of the server
    server_name: str = "server"  # device: the name in the server's certificate
    metrics: str = ""  # server: host:port for /metrics; empty: none
    # server: folders of earlier runs on any of these records, whose claims count as spent
    parents: tuple[str, ...] = ()
    data: dict[str, Any] = {}  # this party's own records: [data.features] or [data.labels]


def read_party(path: Path) -> PartyFile:
    """The keys of the party's file at `path`."""
    return converted(read_toml(path), PartyFile, file=str(path))


def agreed_run(path: Path) -> Config:
    """The agreed configuration in the file at `path`."""
    return configuration.parse(configuration.merge(read_toml(path), {"runtime": {"kind": "network"}}))


def check_agreed(config: Config) -> None:
    """Refuse an agreed configuration that no run between parties can have."""
    names = config.network.devices
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"network.devices must name each device once, got {list(names)}; see docs/howto/deploy.md.")
    if config.privacy.parents:
        raise ConfigError(
            "only the server may name earlier runs, got privacy.parents in the agreed run; set `parents` in the "
            "server's file."
        )
    if config.data.devices:
        raise ConfigError(
            f"network.devices says who takes part, got data.devices {list(config.data.devices)} in the agreed run; "
            "remove data.devices."
        )
    if not config.data.holdout:
        raise ConfigError(
            "data.holdout, the share of records that are tested on, must be above 0 in the agreed run; set e.g. 0.2."
        )
    check_networks(config, len(names))
    for key in ("lam", "eta_m"):
        per_device(f"train.{key}", getattr(config.train, key), len(names))


def check_party(config: Config, file: PartyFile, path: Path) -> None:
    """Refuse an agreed configuration that no run can have, and a party's `file` at `path` that does not fit it."""
    check_agreed(config)
    names = config.network.devices
    for key, address, least in (("listen", file.listen, 0), ("metrics", file.metrics, 0), ("server", file.server, 1)):
        if address:  # port 0 means any that is free
            host_and_port(f"`{key}` in {path}", address, least)
    if bool(file.listen) == bool(file.server):
        raise ConfigError(f"{path} must have either `listen` (the server) or `server` (a device); give one of them.")
    if file.server and file.name not in names:
        raise ConfigError(f"'{file.name}' is not among network.devices {list(names)}; add it there, for all parties.")
    if file.server and file.parents:
        raise ConfigError(f"{path} is a device's file, got `parents`; only the server has the ledgers of earlier runs.")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as nested mappings; one that cannot be read is refused in a sentence."""
    try:
        return toml_of(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give the path of a TOML file.") from None
