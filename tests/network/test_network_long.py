"""A long run between real processes: memory, threads and open files stay what they are after the first rounds."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from town import Town, town

DEVICES = ["north", "east", "south", "west"]
GROWTH = 0.05
"""Of resident memory, between the first rounds and the last."""


@dataclass(frozen=True)
class Sample:
    """One process in one moment: resident bytes, threads and open files."""

    resident: int
    threads: int
    files: int


def config(T: int) -> dict[str, Any]:
    """Networks of two numbers each, so that it is the rounds that take the time."""
    return {
        "data": {"name": "made-up", "holdout": 0.2},
        "devices": {"embedding": 1},
        "train": {"rounds": T, "B": 64, "eta_m": 1e-3, "eval_every": T // 20},
        "head": {"rule": "frozen", "hidden": 4, "refit_steps": 20},
        "privacy": {"epsilon": 8.0},
        "noise": {"source": "seeded"},
        "network": {"devices": DEVICES},
        "runtime": {"kind": "network", "threads": 1, "checkpoint_seconds": 1.0},
    }


def sample(pid: int) -> Sample:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    resident, threads = int(values["VmRSS"].split()[0]) * 1024, int(values["Threads"])
    return Sample(resident, threads, len(os.listdir(f"/proc/{pid}/fd")))


def watched(run: Town, T: int, seconds: float) -> dict[str, list[Sample]]:
    """Start everybody and look at them until the run is finished; samples of each process in the rounds."""
    samples: dict[str, list[Sample]] = {name: [] for name in ("server", *DEVICES)}
    for name in samples:
        run.start(name)
    deadline, status, known = time.monotonic() + seconds, run.out / "status.json", 0
    since: list[tuple[str, Sample]] = []  # the status of a second later says whether they were taken in the rounds
    while run.exit_code("server") is None:
        assert time.monotonic() < deadline, run.logs()
        t = json.loads(status.read_text())["round"] if status.exists() else 0
        if known < t < T:
            for name, one in since:
                samples[name].append(one)
            known, since = t, []
        if known:
            with contextlib.suppress(OSError, KeyError):  # a device has ended
                since += [(name, sample(run.processes[name].pid)) for name in samples]
        time.sleep(0.02)
    for name in DEVICES:
        run.processes[name].join(30)
    assert {run.exit_code(name) for name in samples} == {0}, run.logs()
    return samples


def grown(seen: list[Sample], of: Callable[[Sample], int]) -> tuple[float, float]:
    """Medians of a quantity after the warm-up, a tenth of the time, and in the last tenth."""
    assert len(seen) >= 20, len(seen)
    tenth, values = len(seen) // 10, [of(s) for s in seen]
    return statistics.median(values[tenth : 2 * tenth]), statistics.median(values[-tenth:])


def stays_flat(folder: Path, T: int, seconds: float) -> None:
    with town(folder, config(T), 400) as run:
        began = time.monotonic()
        samples = watched(run, T, seconds)
        took = time.monotonic() - began
        assert run.summary()["rounds"] == run.releases() == T
    print(f"\n{T} rounds in {took:.0f} s")
    for name, seen in samples.items():
        first, last = grown(seen, lambda s: s.resident)
        files = grown(seen, lambda s: s.files)
        threads = grown(seen, lambda s: s.threads)
        print(
            f"  {name}: {first / 1e6:.1f} MB, then {last / 1e6:.1f} MB ({last / first - 1:+.2%}, "
            f"{(last - first) / (0.8 * T):+.1f} bytes a round), files {files[0]:.0f} to {files[1]:.0f}, "
            f"threads {threads[0]:.0f} to {threads[1]:.0f}"
        )
        assert last < (1 + GROWTH) * first, name
        assert files[1] <= files[0], name
        assert threads[1] <= threads[0] + 1, name


def test_six_thousand_rounds_leave_nothing_behind(tmp_path: Path) -> None:
    stays_flat(tmp_path, 6_000, 120)


@pytest.mark.soak
def test_a_hundred_thousand_rounds_leave_nothing_behind(tmp_path: Path) -> None:
    stays_flat(tmp_path, 100_000, 1200)
