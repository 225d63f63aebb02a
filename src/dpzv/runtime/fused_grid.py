"""Runs of a sweep in one process, which advance together: ``python -m dpzv.runtime.fused_grid FILE FOLDER ...``.

`grid.py` starts it for runs that are alike. Each has a configuration file and a folder; one that was begun goes on.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.fused_engine import run_fused
from dpzv.runtime.programs import config_in, run_program
from dpzv.runtime.progress import stop_asked
from dpzv.runtime.run import load_data
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

__all__ = ["main"]


def run_together(runs: list[tuple[Config, Path]]) -> bool:
    """Run all that are not finished to their end; false if a signal stopped them, which can then be resumed.

    Runs that were interrupted after different numbers of rounds go on one group after the other; so do those of several
    seeds whose first layers never move, since what these make of the records takes the place of the records.
    """
    with ExitStack() as stack:
        stopped = stack.enter_context(stop_asked())
        groups: list[list[Simulation]] = []
        accelerator_of(runs[0][0])
        data = load_data(runs[0][0])
        for config, place in runs:
            begun = (place / "config.toml").exists()
            folder = RunFolder.existing(place) if begun else None
            if folder is not None and folder.finished:
                continue
            simulation = Simulation(config, data, begun=place if begun else None)
            folder = folder or RunFolder.create(place, configuration.render(config))
            stack.enter_context(simulation.opened(folder))
            group = next((group for group in groups if _together(group[0], simulation)), None)
            if group is None:
                groups.append(group := [])
            group.append(simulation)
        return all(run_fused(group, lambda snapshot: not stopped()) is not None for group in groups)


def _together(one: Simulation, other: Simulation) -> bool:
    """Whether two runs are equally far, on the same records."""
    features = ([device.x_train for device in simulation.devices] for simulation in (one, other))
    return one.server_run.server.t == other.server_run.server.t and all(map(torch.equal, *features))


def main(*paths: Path) -> int:
    """Run files and folders in pairs; the exit code is 0 when all runs are finished, and 130 if they were stopped."""
    runs = [(config_in(file), folder) for file, folder in zip(paths[::2], paths[1::2], strict=True)]
    return 0 if run_together(runs) else 130


if __name__ == "__main__":
    run_program(main)
