"""Rounds a second of fused runs on an accelerator, over those of the loop that is not fused; needs CUDA.

`python -m benchmarks.fused_rate` prints the rates, the ratios and the accelerator's name. Both loops write ledger and
transcript. The records are random numbers in the shape of mnist: speed does not depend on what they show.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

import torch

from benchmarks.bar import Row, table
from benchmarks.round_cost import strips
from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.fused_engine import Engine
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

__all__ = ["rows"]

TOGETHER = 16
"""Runs of a sweep that advance together."""


@cache
def _records() -> Dataset:
    return strips(60_000)


def _config(*assignments: str) -> Config:
    tree = recipes.tree("mnist")
    common = ("train.rounds=1000000", "noise.source=seeded", "runtime.accelerator=cuda", "head.rule=frozen")
    for assignment in (*common, *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


@contextmanager
def _opened(configs: Sequence[Config]) -> Iterator[list[Simulation]]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = []
        for i, config in enumerate(configs):
            simulation = Simulation(config, _records(), partial(make_networks, config, _records()))
            folder = RunFolder.create(place / f"run{i}", configuration.render(config))
            stack.enter_context(simulation.opened(folder))
            simulation.begin(lambda snapshot: True)
            made.append(simulation)
        yield made


def _rate(advance: Callable[[int], None], seconds: float, block: int) -> float:
    """Rounds a second, after a first call that is not timed: the best of three stretches."""
    advance(max(block, 100))
    best = 0.0
    for _ in range(3):
        torch.cuda.synchronize()
        begin, rounds = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds / 3:
            advance(block)
            rounds += block
        torch.cuda.synchronize()
        best = max(best, rounds / (time.perf_counter() - begin))
    return best


def _loop(simulation: Simulation, n: int) -> None:
    for _ in range(n):
        simulation.round()


def eager(*assignments: str) -> float:
    """Rounds a second of the loop that is not fused."""
    with _opened([_config(*assignments)]) as (simulation,):
        return _rate(partial(_loop, simulation), 3.0, 10)


def together(runs: int, *assignments: str) -> float:
    """Rounds a second of fused runs, over all of them."""
    with _opened([_config(*assignments, f"train.seed={seed}") for seed in range(runs)]) as simulations:
        return runs * _rate(Engine(simulations).advance, 3.0, 1024)


def rows() -> list[Row]:
    """The rates of B = 512, M = 7, E = 16: bars are for the recipe's network; one that is trained whole is printed."""
    if not torch.cuda.is_available():
        return []
    torch.backends.cudnn.allow_tf32 = False
    print(torch.cuda.get_device_name(), file=sys.stderr)
    found = []
    for start in ("gabor", "random"):
        settings = (f"devices.start={start}", "train.B=512")
        slow, fast, many = eager(*settings), together(1, *settings), together(TOGETHER, *settings)
        print(
            f"start {start}: {slow:,.0f} rounds/s eager, {fast:,.0f} fused, {many:,.0f} in {TOGETHER} runs together",
            file=sys.stderr,
        )
        print(f"start {start}: {fast / slow:.1f} times eager, {many / slow:.1f} times together", file=sys.stderr)
        if start == "gabor":
            found.append(Row("fused rounds/s over eager, mnist, B = 512", fast / slow, 12, most=False))
            found.append(Row(f"{TOGETHER} fused runs together over eager", many / slow, 48, most=False))
    return found


if __name__ == "__main__":
    made = rows()
    print(table(made) if made else "no CUDA accelerator was found: nothing was measured")
