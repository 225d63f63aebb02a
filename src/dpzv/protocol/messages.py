"""The messages between a device and the server, as values in main memory. `codec.py` turns them into bytes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

__all__ = ["CHUNK", "Embeddings", "Evaluation", "Fill", "Message", "Pending", "Release"]

CHUNK = 8192
"""The most records in a `Fill` or `Evaluation` message; it bounds the memory of a whole-table upload."""


class Fill(Struct, frozen=True):
    """Device -> server, before the first round: embeddings `h` [n, k] of the train records from `start` on."""

    m: int
    start: int
    h: NDArray[np.float32]


class Embeddings(Struct, frozen=True):
    """Device -> server: embeddings of the batch at `position` of m's public schedule, as many arrays [B, k] as the
    method sends.

    dpzv sends (h_plus, h_minus), or (h, h_1 .. h_K) with K directions, zoo-vfl (h, h_plus), the others (h,). The
    position stands for the record ids: both sides know the schedule, so ids need no bytes and a device cannot choose
    them.
    """

    m: int
    position: int
    h: tuple[NDArray[np.float32], ...]


class Evaluation(Struct, frozen=True):
    """Device -> server, outside training: embeddings `h` [n, k] of the test records from `start` on."""

    m: int
    start: int
    h: NDArray[np.float32]


class Release(Struct, frozen=True):
    """Server -> device: the answer of global round `t` to m's batch at `position`, float64 [n].

    dpzv: `Delta` has K numbers, clipped and noised, one for each direction. zoo-vfl: one such number, or two losses.
    vfl-czofo: q differences. vafl: a gradient of k numbers for each of the B records.
    """

    t: int
    m: int
    position: int
    Delta: NDArray[np.float64]


class Pending(Struct, frozen=True):
    """What the server wants to release in round `t`; only the gate turns it into a `Release`.

    Before noise, number i of the release is `totals[i] * grid / divisor`: exact integers in units of `grid`, or without
    a clip float64 in units of 1. `B` is the size of the batch.
    """

    t: int
    m: int
    position: int
    B: int
    totals: NDArray[np.int64] | NDArray[np.float64]
    grid: float
    divisor: int


Message = Fill | Embeddings | Evaluation | Release
