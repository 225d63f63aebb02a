"""Runs of a sweep in one process, which advance together: ``python -m dpzv.runtime.fused_grid FILE FOLDER ...``.

`grid.py` starts it for runs that are alike. Each has a configuration file and a folder; one that was begun goes on.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

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

    Runs that were interrupted after different numbers of rounds go on one group after the other.
    """
    with ExitStack() as stack:
        stopped = stack.enter_context(stop_asked())
        groups: dict[int, list[Simulation]] = defaultdict(list)
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
            groups[simulation.server_run.server.t].append(simulation)
        return all(run_fused(group, lambda snapshot: not stopped()) is not None for group in groups.values())


def main(*paths: Path) -> int:
    """Run files and folders in pairs; the exit code is 0 when all runs are finished, and 130 if they were stopped."""
    runs = [(config_in(file), folder) for file, folder in zip(paths[::2], paths[1::2], strict=True)]
    return 0 if run_together(runs) else 130


if __name__ == "__main__":
    run_program(main)
