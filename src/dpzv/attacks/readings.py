"""Releases of means as linear measurements of labels.

Every number that the server returns is a mean over a batch of something that each record's label decides: a difference
of two losses, or a loss. A coalition knows the embeddings at which these losses were taken. With a stand-in for the
server's head it can say what each record would add under each label; which labels it had is the unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.replay import Coalition, Turn
from dpzv.config import Config
from dpzv.declarations import method_facts
from dpzv.methods.vfl_czofo import directions
from dpzv.models.losses import Loss
from dpzv.rng import seed_of
from dpzv.runtime.run_plan import batch_of
from dpzv.sensitivity import euclidean_clip
from dpzv.terms import MethodName

__all__ = ["READS", "Readings", "gives_gradients", "is_read", "read", "unread"]

Array = NDArray[np.float32]
Reading = tuple[float, Array, Array | None, float]
"""A number, embeddings h, g [B, k] and a radius: it is the mean of (loss(h) - loss(g)) / radius, or of loss(h)."""

MOST = 20_000_000
"""Numbers in the measurements of one attack; later rounds are left out once there are so many."""

MOST_ROWS = 1500
"""Measurements of one attack; the time to solve them grows with the third power."""


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """Measurements: `total` [R] is the sum over the records `ids` [R, B] of `adds` [R, B, n] at their labels.

    `twins` [R, B, n] is what test record number i would have added in the place of train record i, for as many as there
    are, and 0 for the rest; nothing of them is in any total. `noise` is the deviation of the server's noise on a total.
    """

    total: NDArray[np.float64]
    ids: NDArray[np.int64]
    adds: Array
    twins: Array
    noise: float


def _dpzv(turn: Turn, h: tuple[Array, ...], lam: float, config: Config) -> list[Reading]:
    if len(turn.Delta) == 1:
        return [(float(turn.Delta[0]), h[0], h[1], lam + lam)]
    return [(float(Delta), moved, h[0], lam) for Delta, moved in zip(turn.Delta, h[1:], strict=True)]


def _zoo_vfl(turn: Turn, h: tuple[Array, ...], lam: float, config: Config) -> list[Reading]:
    if len(turn.Delta) == 1:
        return [(float(turn.Delta[0]), h[1], h[0], lam)]
    f, f_plus = turn.Delta.tolist()
    return [(f, h[0], None, 1.0), ((f_plus - f) / lam, h[1], h[0], lam)]


def _vfl_czofo(turn: Turn, h: tuple[Array, ...], lam: float, config: Config) -> list[Reading]:
    seed = seed_of(config.train.seed, "direction", turn.m, turn.position)
    moved: list[Array] = [h[0] + (lam * v).numpy() for v in directions(seed, len(turn.Delta), h[0].shape)]
    return [(float(Delta), plus, h[0], lam) for Delta, plus in zip(turn.Delta, moved, strict=True)]


READS: dict[MethodName, Callable[[Turn, tuple[Array, ...], float, Config], list[Reading]]] = {
    "dpzv": _dpzv,
    "zoo-vfl": _zoo_vfl,
    "vfl-czofo": _vfl_czofo,
}
"""How the means that a method returns are read. Gradients of single records need no entry."""


def gives_gradients(method: MethodName) -> bool:
    """Whether a method returns, for each record by itself, as many numbers as its embedding has."""
    facts, B, width = method_facts(method), 2, 3
    return facts.per_record and facts.numbers(B, width, 1, 1, True) == B * width


def is_read(method: MethodName) -> bool:
    """Whether attacks know what the answers of a method are."""
    return gives_gradients(method) or method in READS


def unread(method: MethodName) -> str:
    """The beginning of a sentence about a method that is not read."""
    return f"nobody has written down in attacks/readings.py how the answers of method '{method}' are read"


@torch.no_grad()
def read(
    coalition: Coalition, heads: list[torch.nn.Module], loss: Loss, labels: int, sigma_dp: float
) -> list[Readings]:
    """The measurements of a coalition that has not been replayed yet, under each of several stand-ins for the head.

    The rows of other members are kept as the server's table keeps them. `sigma_dp` is the public noise of the releases.
    """
    config, members = coalition.members[0].view.config, {one.m: one for one in coalition.members}
    table, tests = coalition.start().copy(), coalition.start(test=True)
    found: list[list[tuple[float, NDArray[np.int64], Array, Array]]] = [[] for _ in heads]
    size = 0
    turns = coalition.turns()
    for turn in turns:
        columns, whose = coalition.columns[turn.m], turn.ids % len(tests)
        real = READS[config.train.method](turn, turn.h, members[turn.m].lam, config)
        other = READS[config.train.method](turn, members[turn.m].twins(turn), members[turn.m].lam, config)
        for kept, head in zip(found, heads, strict=True):
            adds = _added(real, table[turn.ids], columns, head, loss, labels, config)
            twins = _added(other, tests[whose], columns, head, loss, labels, config)
            twins[:, turn.ids >= len(tests)] = 0.0
            kept += zip([len(turn.ids) * one[0] for one in real], [turn.ids] * len(real), adds, twins, strict=True)
        size += 2 * len(heads) * len(real) * len(turn.ids) * labels
        _keep(table, turn.ids, columns, turn.h, config)
        if size > MOST or len(found[0]) >= MOST_ROWS:
            break
    for _ in turns:  # the weights at the end of the run
        pass
    made = []
    for kept in found:
        parts = list(zip(*kept[:MOST_ROWS], strict=True))
        noise = sigma_dp * batch_of(config, len(table))
        made.append(Readings(np.array(parts[0]), np.stack(parts[1]), np.stack(parts[2]), np.stack(parts[3]), noise))
    return made


def _keep(table: Array, ids: NDArray[np.int64], columns: slice, h: tuple[Array, ...], config: Config) -> None:
    """Put a batch into the coalition's copy of the table, as the server does."""
    middle = method_facts(config.train.method).pairs and len(h) == 2
    table[ids, columns] = 0.5 * h[0] + 0.5 * h[1] if middle else h[0]


def _added(
    readings: list[Reading],
    rows: Array,
    columns: slice,
    head: torch.nn.Module,
    loss: Loss,
    labels: int,
    config: Config,
) -> Array:
    """What each record adds to each reading under each label [readings, B, labels], after the clip."""

    def losses(h: Array) -> Array:
        placed = rows.copy()
        placed[:, columns] = h
        output = head(torch.from_numpy(placed))
        each = [loss(output, torch.full((len(h),), label)).numpy() for label in range(labels)]
        return np.stack(each, axis=1)

    parts, base = [], {}
    for _, plus, minus, radius in readings:
        value = losses(plus)
        if minus is not None:
            if id(minus) not in base:
                base[id(minus)] = losses(minus)
            value = (value - base[id(minus)]) / radius
        parts.append(value)
    found = np.stack(parts)
    C = math.inf if config.noise.where == "uplink" else config.privacy.C
    most = euclidean_clip(C, config.train.directions)
    if math.isfinite(most):  # all numbers of a record are clipped together
        norms = np.linalg.norm(found, axis=0, keepdims=True)
        found = found * (most / np.maximum(norms, most))
    return found.astype(np.float32)
