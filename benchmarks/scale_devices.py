"""A thousand simulated devices in one process: the time of a round over that with ten.

With a head that adds what devices send, a round takes the same time however many there are. With a network as head it
takes longer by what it takes to read a batch's rows and to pass them through the head's first layer once, which is
measured beside it. Rounds of all runs alternate, and what counts is processor time, so that others on the machine do
not.

    python -m benchmarks.scale_devices            the curve, from 10 to 1,000 devices
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.bar import Row, table
from benchmarks.scale_records import filled
from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.models.head import Head
from dpzv.runtime.simulate import Simulation

__all__ = ["rows"]

FEW, MANY = 10, 1000
D, B, COLUMNS, ROUNDS = 2000, 512, 8, 60
WIDTHS = {"sum": 1, "network": 4}
"""Numbers in an embedding, by the kind of head."""


def main() -> None:
    """Print the curve."""
    print(table(_measured([100, 300, MANY])))


def rows() -> list[Row]:
    """Two rows: a head that adds, and a network."""
    return _measured([MANY])


def _measured(sizes: list[int]) -> list[Row]:
    torch.set_num_threads(1)
    found = []
    for model in WIDTHS:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            opened = {M: filled(_config(model), _data(M), Path(name) / str(M)) for M in (FEW, *sizes)}
            runs = {M: stack.enter_context(run) for M, run in opened.items()}
            taken = _medians(runs)
        for M in sizes:
            if model == "sum":
                ratio, what = taken[M]["round"] / taken[FEW]["round"], f"over one with {FEW}, a head that adds"
            else:
                more = {part: taken[M][part] - taken[FEW][part] for part in taken[M]}
                ratio, what = more["round"] / more["first"], f"less one with {FEW}, over the head's first layer"
            told = f"{1e3 * taken[M]['round']:.2f} ms and {1e3 * taken[FEW]['round']:.2f} ms"
            print(f"devices, {model}, M={M:,}: a round takes {told}", file=sys.stderr)
            found.append(Row(f"devices: a round with M={M:,} {what}", ratio, 1.3))
    return found


def _config(model: str) -> Config:
    head = {"model": "sum"} if model == "sum" else {"hidden": 64}
    return configuration.parse(
        {
            "data": {"name": "arrays"},
            "devices": {"model": "linear", "embedding": WIDTHS[model]},
            "train": {"rounds": 10**6, "B": B, "eval_every": 10**9},
            "head": {"rule": "frozen", "final": "private", **head},
            "noise": {"source": "seeded"},
            "runtime": {"checkpoint_seconds": 1e9, "threads": 1},
        }
    )


def _data(M: int) -> Dataset:
    """Random records: speed does not depend on what they are."""
    generator = np.random.default_rng(0)
    xs = [generator.standard_normal((D, COLUMNS), np.float32) for _ in range(M)]
    y = generator.integers(0, 2, D)
    return from_arrays(Records(xs, y), Records([x[:64] for x in xs], y[:64]), task="binary", fingerprint="random")


@torch.no_grad()
def _first_layer(simulation: Simulation) -> None:
    """Read the rows of a batch, and pass them through the head's first layer, if it has layers."""
    server = simulation.server_run.server
    rows, _ = server.table.rows(1, simulation.server_run.schedules[0].ids(0))
    if isinstance(server.method.head, Head):
        server.method.head.hidden(rows)


def _medians(runs: dict[int, Simulation]) -> dict[int, dict[str, float]]:
    """The median seconds of a round and of its head's first layer in every run, all of them in turn."""
    taken: dict[int, dict[str, list[float]]] = {M: {"round": [], "first": []} for M in runs}
    for i in range(ROUNDS + 5):
        for M, run in runs.items():
            works: dict[str, Callable[[], None]] = {"round": run.round, "first": partial(_first_layer, run)}
            for part, work in works.items():
                start = time.thread_time()
                work()
                if i >= 5:
                    taken[M][part].append(time.thread_time() - start)
    return {M: {part: statistics.median(seconds) for part, seconds in some.items()} for M, some in taken.items()}


if __name__ == "__main__":
    main()
