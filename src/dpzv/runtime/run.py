"""Start a simulated run in a new folder, or resume one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.data.dataset import Dataset, check, part_of
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.device_networks import Networks, make_networks
from dpzv.runtime.device_view import ask_for_views
from dpzv.runtime.fused_engine import run_fused
from dpzv.runtime.fused_kinds import refuse_kind
from dpzv.runtime.rehearsal import rehearsed
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.server_run import Observer
from dpzv.runtime.simulate import Simulation

__all__ = ["load_data", "load_whole", "resume", "run", "start"]


def start(
    config: Config,
    path: Path,
    observe: Observer,
    max_seconds: float,
    *,
    whole: Dataset | None = None,
    record_view: bool = False,
) -> dict[str, Any] | None:
    """Run `config` in the new folder `path`; see `Simulation.run` for what comes back.

    `whole` is what `load_whole` gives for `config`, where several runs share what one of them has read.
    """
    data = part_of(whole, config.data.devices, 0.0) if whole else load_data(config)
    return run(config, data, partial(make_networks, config, data), path, observe, max_seconds, record_view)


def resume(path: Path, observe: Observer, max_seconds: float) -> dict[str, Any] | None:
    """Continue the run of folder `path` from its last checkpoint; a finished one gives its summary."""
    folder = RunFolder.existing(path)
    if folder.finished:
        return folder.read_summary()
    config = folder.config()
    accelerator_of(config)  # refuses an accelerator that is not there
    data = load_data(config)
    simulation = Simulation(config, data, begun=path)
    with simulation.opened(folder):
        return _go_on(config, simulation, observe, max_seconds)


def run(
    config: Config,
    data: Dataset,
    networks: Networks,
    path: Path,
    observe: Observer,
    max_seconds: float = float("inf"),
    record_view: bool = False,
) -> dict[str, Any] | None:
    """Run `config` on any data and networks, in the new folder `path`.

    With `record_view` the folder also keeps what each device saw and holds.
    """
    check(data)
    accelerator_of(config)  # refuses an accelerator that is not there
    refuse_kind(config)
    simulation = Simulation(config, data, networks)  # refuses before anything is written
    folder = RunFolder.create(path, configuration.render(config))
    if record_view:
        ask_for_views(path)
    with simulation.opened(folder):
        return _go_on(config, simulation, observe, max_seconds)


def _go_on(config: Config, simulation: Simulation, observe: Observer, max_seconds: float) -> dict[str, Any] | None:
    """Make the rounds of an open run one by one, or in blocks."""
    if config.runtime.kind != "fused":
        return simulation.run(observe, max_seconds)
    found = run_fused([simulation], observe, max_seconds)
    return found[0] if found else None


def load_whole(config: Config) -> Dataset:
    """The configuration's data set with all devices, even if `data.devices` selects some."""
    return load_data(replace(config, data=replace(config.data, devices=())))


def load_data(config: Config) -> Dataset:
    """The records that a configuration names."""
    asked = config.data
    if asked.parties:
        return part_of(rehearsed(config).data, asked.devices, asked.holdout)
    return catalogue.load(
        asked.name,
        asked.path,
        asked.columns,
        encoder=asked.encoder,
        tokens=asked.tokens,
        holdout=asked.holdout,
        devices=asked.devices,
    )
