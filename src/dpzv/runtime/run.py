"""Start a simulated run in a new folder, or resume one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.data.dataset import Dataset, check
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.device_networks import Networks, make_networks
from dpzv.runtime.journal import Observer
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

__all__ = ["load_data", "resume", "run", "start"]


def start(config: Config, path: Path, observe: Observer, max_seconds: float) -> dict[str, Any] | None:
    """Run `config` in the new folder `path`; see `Simulation.run` for what comes back."""
    data = load_data(config)
    return run(config, data, partial(make_networks, config, data), path, observe, max_seconds)


def resume(path: Path, observe: Observer, max_seconds: float) -> dict[str, Any] | None:
    """Continue the run of folder `path` from its last checkpoint; a finished one gives its summary."""
    folder = RunFolder.existing(path)
    if folder.finished:
        return folder.read_summary()
    config = folder.config()
    accelerator_of(config)  # refuses one that is not there
    data = load_data(config)
    simulation = Simulation(config, data, partial(make_networks, config, data), path)
    with simulation.opened(folder):
        return simulation.run(observe, max_seconds)


def run(
    config: Config,
    data: Dataset,
    networks: Networks,
    path: Path,
    observe: Observer,
    max_seconds: float = float("inf"),
) -> dict[str, Any] | None:
    """Run `config` on any data and networks, in the new folder `path`."""
    check(data)
    accelerator_of(config)  # refuses one that is not there
    simulation = Simulation(config, data, networks)  # refuses before anything is written
    folder = RunFolder.create(path, configuration.render(config))
    with simulation.opened(folder):
        return simulation.run(observe, max_seconds)


def load_data(config: Config) -> Dataset:
    """The records that a configuration names."""
    asked = config.data
    return catalogue.load(
        asked.name,
        asked.path,
        asked.columns,
        encoder=asked.encoder,
        tokens=asked.tokens,
        holdout=asked.holdout,
        devices=asked.devices,
    )
