"""Runs that are too short for a process each: one after the other in this one, in the folders that `grid` would use."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dpzv import config as configuration
from dpzv.durable import write_atomically
from dpzv.errors import DpzvError
from dpzv.runtime.grid import Failure, Job, State, Watch
from dpzv.runtime.journal import Snapshot
from dpzv.runtime.run import resume, start
from dpzv.runtime.server_run import Observer

__all__ = ["run_in_turn"]


def run_in_turn(jobs: Sequence[Job], out: Path, watch: Watch) -> list[Failure] | None:
    """Run all jobs that are not finished; `None` if `watch` stopped them (resumable)."""
    waiting = [job for job in jobs if not (out / "runs" / job.key / "summary.json").exists()]
    total, failures = sum(job.rounds for job in jobs), list[Failure]()
    done = total - sum(job.rounds for job in waiting)
    torch.set_num_threads(1)
    for number, job in enumerate(waiting, len(jobs) - len(waiting)):
        before = State("rounds", done, total, number, len(jobs), len(failures))
        if not watch(before):
            return None

        def observe(snapshot: Snapshot, before: State = before) -> bool:
            return watch(replace(before, rounds=before.rounds + snapshot.t))

        try:
            if not _finished(job, out / "runs", observe):
                return None
        except DpzvError as error:
            failures.append(Failure(job.name, error.exit_code, str(error)))
        done += job.rounds
    return failures


def _finished(job: Job, runs: Path, observe: Observer) -> bool:
    """Run one job, or go on with it; false if the observer stopped it."""
    folder, file = runs / job.key, runs / f"{job.key}.toml"
    if job.program:
        write_atomically(file, configuration.render(job.config).encode())
        importlib.import_module(job.program).main(file, folder)
        return True
    if (folder / "config.toml").exists():
        return resume(folder, observe, float("inf")) is not None
    return start(job.config, folder, observe, float("inf")) is not None
