"""The time of one round over its floor, which is two device forwards and two head forwards of the same batch.

Round and floor are measured in turn, so that a noisy machine disturbs both alike; the figure is the ratio of medians.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.bar import Row
from dpzv import config as configuration
from dpzv import recipes
from dpzv.data.dataset import Dataset
from dpzv.protocol.table import gather
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

__all__ = ["rows", "strips"]

ROUNDS = 200


def strips(D: int) -> Dataset:
    """Random images in the shape of mnist: speed does not depend on what they show."""
    generator = np.random.default_rng(0)
    x = tuple(generator.integers(0, 256, (D, 112), dtype=np.uint8) for _ in range(7))
    y = generator.integers(0, 10, D)
    names = tuple(f"strip {m}" for m in range(1, 8))
    return Dataset(
        name="mnist",
        task="classes",
        n_classes=10,
        devices=names,
        x_train=x,
        y_train=y,
        x_test=tuple(part[:64] for part in x),
        y_test=y[:64],
        fingerprint="random",
        source="random numbers",
    )


def _floor(simulation: Simulation, ids: NDArray[np.int64], m: int) -> None:
    """Two device forwards and two head forwards of the batch `ids`."""
    device, server = simulation.devices[m - 1], simulation.server_run.server
    x = gather(device.x_train, ids)
    rows, _ = server.table.rows(m, ids)
    with torch.no_grad():
        for _ in range(2):
            device.method.network(x)
            server.method.head(rows)


def rows() -> list[Row]:
    """One row: an mnist round at B = 512, frozen head, seeded noise, over its floor."""
    tree = recipes.tree("mnist")
    for assignment in ("head.rule=frozen", "train.B=512", "train.rounds=100000", "noise.source=seeded"):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    config, data = configuration.parse(tree), strips(60_000)
    simulation = Simulation(config, data, partial(make_networks, config, data))
    costs: list[float] = []
    floors: list[float] = []
    with tempfile.TemporaryDirectory() as folder_name:
        folder = RunFolder.create(Path(folder_name) / "run", configuration.render(config))
        with simulation.opened(folder):
            ids = np.random.default_rng(0).permutation(60_000)[:512]
            for i in range(ROUNDS + 20):
                start = time.perf_counter()
                simulation.round()
                middle = time.perf_counter()
                _floor(simulation, ids, 1 + i % 7)
                end = time.perf_counter()
                if i >= 20:
                    costs.append(middle - start)
                    floors.append(end - middle)
    return [Row("mnist round, B=512, over two device and two head forwards", _ratio(costs, floors), 1.5)]


def _ratio(costs: list[float], floors: list[float]) -> float:
    return statistics.median(costs) / statistics.median(floors)
