"""A party as its operator starts it: its own file, its records, its links, the server at work, and its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data import party_records as records
from dpzv.data.alignment import keyed, name_of_key
from dpzv.errors import ConfigError, DataError
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.grpc_transport import GrpcConnector, GrpcListener, refusals_logged
from dpzv.network.keyfiles import Credentials, own_name, read_alignment_key
from dpzv.network.server_party import ServerParty
from dpzv.network.status import read_status, serve_metrics
from dpzv.runtime.run_folder import RunFolder
from dpzv.validate import converted, toml_of

__all__ = ["Party", "load_party", "open_folder", "serve"]


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
    parents: tuple[
        str, ...
    ] = ()  # server: folders of earlier runs on any of these records, whose claims count as spent
    data: dict[str, Any] = {}


class Party(msgspec.Struct, frozen=True):
    """A party whose file is read and checked; its records are read when they are asked for."""

    file: PartyFile
    config: Config
    credentials: Credentials
    out: Path
    data: records.PartyData

    @property
    def _key(self) -> bytes:
        return read_alignment_key(self.credentials.ca.with_name("alignment.key"))

    def hashed(self, ids: Sequence[str]) -> NDArray[np.uint8]:
        """Record ids as the parties compare them."""
        return keyed(ids, self._key)

    def features(self) -> FeatureRecords:
        """A device's own records."""
        if self.data.features is None:
            raise ConfigError("a device needs features, got none; add [data.features] to its file.")
        table = records.read_features(self.data.features)
        return FeatureRecords(self.hashed(table.ids), table.x, self.data.features.columns, self._key)

    def labels(self) -> LabelRecords:
        """The server's own records."""
        asked = self.data.labels
        if asked is None:
            raise ConfigError("the server needs labels, got none; add [data.labels] to its file.")
        table = records.read_labels(asked)
        n_classes, name = len(asked.classes or ()), Path(asked.file).stem
        key, meaning = name_of_key(self._key, asked.id), {}
        for field in ("label", "task", "classes", "low", "high"):
            meaning[field] = repr(getattr(asked, field))
        return LabelRecords(self.hashed(table.ids), table.y, asked.task, n_classes, name, key, meaning)

    def listener(self) -> GrpcListener:
        """Where the server is reached."""
        return GrpcListener(self.file.listen, self.credentials)

    def connector(self, address: str = "") -> GrpcConnector:
        """How a device reaches its server: at `address`, or at that of its file."""
        return GrpcConnector(address or self.file.server, self.credentials, self.file.server_name)


def load_party(path: Path) -> Party:
    """The party of a TOML file."""
    folder = path.parent
    file = converted(_toml(path), PartyFile, file=str(path))
    keys = folder / file.keys
    credentials = Credentials(keys / f"{file.name}.crt", keys / f"{file.name}.key", keys / "ca.crt")
    shown = own_name(credentials)
    if shown != file.name:
        raise ConfigError(f"{path} is for '{file.name}', but its certificate is for '{shown}'; correct one of them.")
    agreed = configuration.parse(configuration.merge(_toml(folder / file.run), {"runtime": {"kind": "network"}}))
    _check(agreed, file, path)
    parents = tuple(str(folder / parent) for parent in file.parents)
    config = msgspec.structs.replace(agreed, privacy=msgspec.structs.replace(agreed.privacy, parents=parents))
    return Party(file, config, credentials, folder / file.out, records.parse(file.data, folder))


def open_folder(own: Party) -> RunFolder:
    """The server's run folder: new, or that of the same run."""
    return RunFolder.of_run(own.out, own.config)


async def serve(own: Party, folder: RunFolder, started: Callable[[ServerParty], None]) -> dict[str, Any] | None:
    """Train to the end and return the summary, or `None` if stopped before; `started` is given the server first.

    The server of a finished run listens again only if a device has not heard of its end.
    """
    if folder.finished and _all_told(folder.path):
        return folder.read_summary()
    with folder.held():
        server = ServerParty(own.config, own.labels(), folder)
        started(server)
        metrics = await serve_metrics(own.file.metrics, server.status) if own.file.metrics else None
        try:
            with refusals_logged():
                return await server.run(own.listener())
        finally:
            if metrics is not None:
                metrics.close()


def _all_told(path: Path) -> bool:
    """Whether every device is known to have heard of the run's end; not if the status is lost or damaged."""
    try:
        return all(device.told for device in read_status(path).devices)
    except (ConfigError, DataError):
        return False


def _check(config: Config, file: PartyFile, path: Path) -> None:
    names = config.network.devices
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"network.devices must name each device once, got {list(names)}; see docs/howto/deploy.md.")
    if bool(file.listen) == bool(file.server):
        raise ConfigError(f"{path} must have either `listen` (the server) or `server` (a device); give one of them.")
    if file.server and file.name not in names:
        raise ConfigError(f"'{file.name}' is not among network.devices {list(names)}; add it there, for all parties.")
    if config.privacy.parents:
        raise ConfigError(
            "only the server may name earlier runs, got privacy.parents in the agreed run; set `parents` in the "
            "server's file."
        )
    if file.server and file.parents:
        raise ConfigError(f"{path} is a device's file, got `parents`; only the server has the ledgers of earlier runs.")
    if config.data.devices:
        raise ConfigError(
            f"network.devices says who takes part, got data.devices {list(config.data.devices)} in the agreed run; "
            "remove data.devices."
        )
    if not config.data.holdout:
        raise ConfigError(
            "data.holdout, the share of records that are tested on, must be above 0 in the agreed run; set e.g. 0.2."
        )


def _toml(path: Path) -> dict[str, Any]:
    try:
        return toml_of(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give the path of a TOML file.") from None
