"""Small runs whose devices' views are attacked."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from dpzv import config as configuration
from dpzv.attacks.replay import Coalition
from dpzv.attacks.scored import Truth
from dpzv.config import Config
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.device_view import read_views
from dpzv.runtime.run import run

D, D_TEST, B, WIDTH, SHARE = 256, 200, 32, 32, 0.3


@cache
def data(kind: str = "coins") -> Dataset:
    """Two devices with as many columns each as there are records in a batch.

    Labels are coins ("coins": nothing but the run can tell them), whether a column of device 2 is large ("other"), or
    whether the sum of all columns is positive ("sum"). The records of "images" are strips of pixels with coins as
    labels; the first ten are black.
    """
    generator = np.random.default_rng(5)
    x = np.clip(generator.normal(size=(2, D + D_TEST, WIDTH)), -3, 3).astype(np.float32)
    if kind == "images":
        x = generator.integers(0, 256, (2, D + D_TEST, 4 * 28)).astype(np.uint8)
        x[:, :10], kind = 0, "coins"
    coins = generator.random(D + D_TEST) < SHARE
    y = {"coins": coins, "other": x[1, :, 0] > 0.5, "sum": x.sum(axis=(0, 2)) > 0}[kind].astype(np.int64)
    train, test = Records([x[0, :D], x[1, :D]], y[:D]), Records([x[0, D:], x[1, D:]], y[D:])
    return from_arrays(train, test, task="binary")


def settings(method: str = "dpzv", epsilon: float = float("inf"), **sections: dict[str, Any]) -> Config:
    """Linear devices of one number each, added by the server, for one pass over the records in small batches."""
    tree: configuration.Tree = {
        "devices": {"embedding": 1, "model": "linear", "start": "random"},
        "train": {"method": method, "rounds": 16, "B": B, "eta_m": 1e-2, "eval_every": 1000},
        "head": {"model": "sum", "rule": "frozen", "final": "private", "base": SHARE},
        "privacy": {"epsilon": epsilon, "protects": "labels", "C": 8.0, "min_batch": B},
        "noise": {"source": "seeded"},
    }
    for name, changes in sections.items():
        tree = configuration.merge(tree, {name: changes})
    return configuration.parse(tree)


@cache
def trained(
    method: str = "dpzv", epsilon: float = float("inf"), *extra: tuple[str, str, Any], kind: str = "coins"
) -> Path:
    """The folder of a finished run with views, the same one for the same arguments; `extra` are settings."""
    changes: dict[str, dict[str, Any]] = {}
    for section, key, value in extra:
        changes.setdefault(section, {})[key] = value
    config, records = settings(method, epsilon, **changes), data(kind)
    folder = Path(mkdtemp()) / "run"
    run(config, records, partial(make_networks, config, records), folder, lambda _: True, record_view=True)
    return folder


def coalition(folder: Path, *devices: int) -> Coalition:
    """These devices of a run, or all of them."""
    return Coalition.of([view for view in read_views(folder) if not devices or view.shape.m in devices])


def truth(kind: str = "coins", *, shuffled: bool = False) -> Truth:
    """The true labels, or the same in an order that has nothing to do with the records."""
    y, other = data(kind).y_train, data(kind).y_test
    if shuffled:
        y, other = (np.random.default_rng(1).permutation(labels) for labels in (y, other))
    return Truth("binary", 2, y, other)
