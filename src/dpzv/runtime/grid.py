"""Many runs, each in a process of its own and found by the hash of its configuration, so that none runs twice.

OUT/compute.json                  what the virtual clock charges, see `compute_cost`
OUT/runs/NAME-HASH/               one run folder each; `summary.json` in it means finished
OUT/runs/NAME-HASH.toml           the configuration it was started with
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from dpzv import config as configuration
from dpzv.config import Config, RuntimeSection, Tree
from dpzv.declarations import METHODS
from dpzv.durable import write_atomically
from dpzv.errors import ConfigError
from dpzv.runtime.fused_kinds import alike

__all__ = ["Failure", "Job", "State", "Watch", "config_hash", "cores", "jobs_that_fit", "layered", "run"]

POLL = 0.1
"""Seconds between two looks at the children."""

PATIENCE = 600.0
"""Seconds a stopped child gets to finish its round and write a checkpoint."""

TOGETHER = 16
"""The most fused runs that advance together in one process."""

GENEROUS = 1.5
"""A run may need this much more memory than was measured over its first rounds."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a grid: its name without the hash, its configuration and its T.

    A job with a `program` is no run of the configuration: that module takes it and a folder, and leaves a summary there
    (`ceiling.py` trains the same devices and head by backpropagation). `found_by` is the configuration by whose hash
    the run is found, where that is not its own.
    """

    name: str
    config: Config
    rounds: int
    program: str = ""
    found_by: Config | None = None

    @property
    def key(self) -> str:
        """The name of its folder."""
        return f"{self.name}-{config_hash(self.found_by or self.config)[:12]}"


@dataclass(frozen=True, slots=True)
class State:
    """How far a grid is, over all its runs."""

    stage: str
    rounds: int = 0
    rounds_total: int = 0
    runs: int = 0
    runs_total: int = 0
    failed: int = 0


Watch = Callable[[State], bool]
"""Called several times a second; returning false stops the children, which can be resumed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that ended without a summary: its name, its exit code and why, in a sentence."""

    name: str
    code: int
    sentence: str


def config_hash(config: Config) -> str:
    """sha256 of what a run's result depends on, which leaves out where files lie and how often the run is saved.

    The accelerator and the number of threads stay in, since they change the order of floating-point sums. Runs are
    found again by it, so the order of the configuration's keys is a format.
    """
    plain = msgspec.structs.replace(
        config,
        recipe="",
        data=msgspec.structs.replace(config.data, path=""),
        table=msgspec.structs.replace(config.table, path=""),
        runtime=msgspec.structs.replace(config.runtime, checkpoint_seconds=RuntimeSection().checkpoint_seconds),
    )
    return hashlib.sha256(configuration.render(plain).encode()).hexdigest()


def layered(tree: Tree, settings: Mapping[str, Any], method: str, changes: Sequence[Tree]) -> Tree:
    """A recipe's tree, then the settings of all methods, then those of `method`, then `changes`.

    Several directions a message and slopes of 8 bits are left out for methods that cannot have them. Where the head
    only adds, the settings' head rules are left out: it has no weights that could move.
    """
    own = [settings.get("all", {}), settings.get(method, {})]
    if functools.reduce(configuration.merge, changes, tree).get("head", {}).get("model") == "sum":
        own = [{**part, "head": {k: v for k, v in part.get("head", {}).items() if k != "rule"}} for part in own]
    for part in (*own, *changes):
        tree = configuration.merge(tree, part)
    facts = METHODS.get(method)  # `None` for runs of untrained devices, whose name is not that of a method
    if facts and not facts.directions and tree["train"].get("directions", 1) > 1:
        tree = configuration.merge(tree, {"train": {"directions": 1}})
    if facts and not facts.slopes and tree.get("codec", {}).get("name") == "int8":
        tree = configuration.merge(tree, {"codec": {"name": "float16"}})
    return tree


def jobs_that_fit(run_bytes: int, accelerator_share: float, runs: int) -> int:
    """How many runs fit beside each other: one per core, if there is memory for them."""
    available = run_bytes * runs
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                available = 1024 * int(line.split()[1])
    in_memory = int(available / (GENEROUS * max(run_bytes, 1)))
    on_accelerator = int(1 / (GENEROUS * accelerator_share)) if accelerator_share else runs
    return max(1, min(cores(), runs, in_memory, on_accelerator))


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def run(jobs: Sequence[Job], out: Path, at_once: int, watch: Watch) -> list[Failure] | None:
    """Run all jobs that are not finished, `at_once` at a time; `None` if `watch` stopped them (resumable)."""
    unique = {job.key: job for job in jobs}
    for job in unique.values():
        _refuse_other_files(job, out / "runs")
    left = [job for key, job in unique.items() if not _finished(out / "runs" / key)]
    total = sum(job.rounds for job in unique.values())
    rounds = total - sum(job.rounds for job in left)
    runs = len(unique) - len(left)
    waiting = _together(left)
    running: list[_Child] = []
    failures: dict[str, Failure] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Child.start(waiting.pop(0), out / "runs"))
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                rounds += sum(job.rounds for job in child.jobs)
                runs += len(child.jobs)
                failures |= child.ended()
            done = rounds + sum(child.rounds() for child in running)
            if not watch(State("rounds", done, total, runs, len(unique), len(failures))):
                _stop(running)
                return None
            time.sleep(POLL)
    finally:
        for child in running:
            child.end()
    return [failures[key] for key in unique if key in failures]


def _together(jobs: Sequence[Job]) -> list[tuple[Job, ...]]:
    """The jobs of each child: fused runs that are alike advance together, and every other run is alone."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        fused = job.config.runtime.kind == "fused" and not job.program
        groups.setdefault(alike(job.config) if fused else job.key, []).append(job)
    return [tuple(some[i : i + TOGETHER]) for some in groups.values() for i in range(0, len(some), TOGETHER)]


def _refuse_other_files(job: Job, runs: Path) -> None:
    """Refuse a folder whose run began with another data.path: its hash is the same, but it is not the run asked for."""
    file = runs / job.key / "config.toml"
    if not file.exists():
        return
    begun, asked = msgspec.toml.decode(file.read_bytes())["data"].get("path", ""), job.config.data.path
    if begun != asked:
        raise ConfigError(f"{file.parent} was run with data.path '{begun}', now it is '{asked}'; give another --out.")


@dataclass(frozen=True, slots=True)
class _Child:
    """One or more runs in a process of their own, their folders, and the file its standard error goes to."""

    jobs: tuple[Job, ...]
    folders: tuple[Path, ...]
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    @classmethod
    def start(cls, jobs: tuple[Job, ...], runs: Path) -> Self:
        """Start runs, or resume them where they were begun before."""
        folders, files = [runs / job.key for job in jobs], [runs / f"{job.key}.toml" for job in jobs]
        for job, file in zip(jobs, files, strict=True):
            write_atomically(file, configuration.render(job.config).encode())
        job, folder, file = jobs[0], folders[0], files[0]
        if job.program:
            arguments = [job.program, str(file), str(folder)]
        elif job.config.runtime.kind == "fused":
            arguments = ["dpzv.runtime.fused_grid", *map(str, itertools.chain(*zip(files, folders, strict=True)))]
        elif (folder / "config.toml").exists():
            arguments = ["dpzv", "resume", str(folder), "--quiet"]
        else:
            arguments = ["dpzv", "train", str(file), "--out", str(folder), "--quiet"]
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which stops each child once
        )
        return cls(jobs, tuple(folders), process, errors)

    def rounds(self) -> int:
        """Rounds done, as of the last lines of metrics."""
        return sum(map(_rounds, self.folders))

    def ended(self) -> dict[str, Failure]:
        """Why runs of a child that ended have no summary, by the names of their folders."""
        code = self.process.returncode
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        self.errors.close()
        sentence = lines[-1].removeprefix("dpzv: ") if lines else f"ended with exit code {code} and without a summary."
        if code < 0:
            name = signal.Signals(-code).name
            code, sentence = 1, f"ended by {name}; if memory ran out, go on with a smaller --jobs."
        lost = [job for job, folder in zip(self.jobs, self.folders, strict=True) if not _finished(folder)]
        return {job.key: Failure(job.name, code or 1, sentence) for job in lost}

    def end(self) -> None:
        """Kill a child that is still there."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def _finished(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def _rounds(folder: Path) -> int:
    """Rounds done by a run, as of its last line of metrics."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            line = file.read().split(b"\n")[-2]
        return int(msgspec.json.decode(line)["round"])
    except (FileNotFoundError, IndexError, msgspec.DecodeError):
        return 0


def _stop(running: list[_Child]) -> None:
    """Ask each child once to write a checkpoint and end, and wait for it."""
    for child in running:
        child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    for child in running:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.end()
