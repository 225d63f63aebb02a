"""Ten million records: the time of a round over that with 60,000, and the memory of the process that holds them.

Time is told twice, by the clock, which sees waits for the disk, and by the processor, which others on the machine do
not disturb.

Table and features lie in files that are mapped into memory. Both runs are in one process, which has the server and four
devices, and their rounds alternate, so that a noisy machine disturbs both alike. Memory is what the process holds for
itself (`RssAnon`: batches, counters, labels, the ages of the table's entries), sampled while the table is filled, the
first checkpoint is written and rounds are run. Pages of the mapped files are the kernel's to drop, and do not count.

    python -m benchmarks.scale_records            the curve, up to 10 million records
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.bar import Row, status_bytes, table
from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.journal import Snapshot
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

__all__ = ["anonymous", "filled", "rows", "sampled"]

SMALL, MIDDLE, LARGE = 60_000, 1_000_000, 10_000_000
M, E, COLUMNS, TESTS = 4, 16, 8, 1000
ROUNDS = 1000
FOLDER = "."  # on a disk: a folder in memory would hold the mapped files there


def main() -> None:
    """Print the curve, or what is measured with the numbers of records that are given."""
    print(table(_measured(list(map(int, sys.argv[1:])) or [MIDDLE, LARGE])))


def rows() -> list[Row]:
    """Three rows: time, processor time and memory with ten million records."""
    return _measured([LARGE])


def _measured(sizes: list[int]) -> list[Row]:
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory(dir=FOLDER) as name, ExitStack() as stack:
        small = stack.enter_context(_opened(SMALL, Path(name)))
        for D in sizes:
            with sampled() as peak, _opened(D, Path(name)) as large:
                wall, processor = _ratios(large, small)
            found.append(Row(f"records: a round with D={D:,} over one with {SMALL:,}", wall, 1.3))
            found.append(Row(f"records: processor time of a round with D={D:,}, the same", processor, 1.3))
            found.append(Row(f"records: anonymous memory with D={D:,}, GiB", max(peak) / 2**30, 2.0))
            shutil.rmtree(Path(name) / str(D))
    return found


def _config(folder: Path) -> Config:
    return configuration.parse(
        {
            "data": {"name": "arrays"},
            "devices": {"model": "linear", "embedding": E},
            "train": {"rounds": 10**6, "B": 512, "eval_every": 10**9},
            "head": {"rule": "frozen", "hidden": 128, "final": "private"},
            "noise": {"source": "seeded"},
            "privacy": {"delta_dp": 1e-8},
            "table": {"path": str(folder / "table")},
            "runtime": {"checkpoint_seconds": 1e9, "threads": 1},
        }
    )


def _data(D: int, folder: Path) -> Dataset:
    """Random records, the features of each device in a mapped file; speed does not depend on what they are."""
    generator, xs = np.random.default_rng(0), []
    for m in range(1, M + 1):
        x = np.memmap(folder / f"features-{m}", np.float32, "w+", shape=(D, COLUMNS))
        for start in range(0, D, SMALL):
            part = x[start : start + SMALL]
            part[:] = generator.standard_normal(part.shape, np.float32)
        xs.append(x)
    y = generator.integers(0, 10, D)
    tests = Records([x[:TESTS] for x in xs], y[:TESTS])
    return from_arrays(Records(xs, y), tests, task="classes", n_classes=10, fingerprint=f"random {D}")


@contextmanager
def _opened(D: int, above: Path) -> Iterator[Simulation]:
    """A run over D records whose table is filled."""
    folder, began = above / str(D), time.perf_counter()
    folder.mkdir()
    with filled(_config(folder), _data(D, folder), folder / "run") as simulation:
        print(f"records: D={D:,} is ready after {time.perf_counter() - began:.0f} s", file=sys.stderr)
        yield simulation


@contextmanager
def filled(config: Config, data: Dataset, folder: Path) -> Iterator[Simulation]:
    """A simulated run whose table is filled, whose first checkpoint is written, and which has made a round."""
    simulation = Simulation(config, data, partial(make_networks, config, data))

    def after_one(now: Snapshot) -> bool:
        return now.stage != "rounds"

    with simulation.opened(RunFolder.create(folder, configuration.render(config))):
        simulation.run(after_one)
        yield simulation


def _ratios(large: Simulation, small: Simulation) -> tuple[float, float]:
    """The ratios of the median times of a round and of its processor times, of rounds in turn."""
    clocks = time.perf_counter, time.thread_time
    taken: dict[Simulation, list[tuple[float, ...]]] = {large: [], small: []}
    for i in range(ROUNDS + 20):
        for simulation, seconds in taken.items():
            start = [clock() for clock in clocks]
            simulation.round()
            if i >= 20:
                seconds.append(tuple(clock() - began for clock, began in zip(clocks, start, strict=True)))
    medians = [[statistics.median(times) for times in zip(*seconds, strict=True)] for seconds in taken.values()]
    for name, mine, other in zip(("a round takes", "its processor time is"), *medians, strict=True):
        print(f"records: {name} {mine * 1e3:.2f} ms and {other * 1e3:.2f} ms", file=sys.stderr)
    wall, processor = (mine / other for mine, other in zip(*medians, strict=True))
    return wall, processor


def anonymous() -> int:
    """Bytes of memory that this process holds for itself, not those of mapped files."""
    return status_bytes("RssAnon")


@contextmanager
def sampled(every: float = 0.02) -> Iterator[list[int]]:
    """Sample `anonymous` while the block runs; the list holds the samples."""
    samples, ended = [anonymous()], threading.Event()

    def sample() -> None:
        while not ended.wait(every):
            samples.append(anonymous())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
