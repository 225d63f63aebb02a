"""The messages between a device and the server, as values. `codec.py` turns them into bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Embeddings", "Evaluation", "Fill", "Message", "Pending", "Release"]


@dataclass(frozen=True, slots=True)
class Fill:
    """Device -> server, before the first round: embeddings `h` [n, k] of the train records from `start` on."""

    m: int
    start: int
    h: torch.Tensor


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Device -> server: both perturbed embeddings [B, k] of the batch at `position` of m's public schedule.

    The position stands for the record ids: both sides know the schedule, so ids need no bytes and a
    device cannot choose them.
    """

    m: int
    position: int
    h_plus: torch.Tensor
    h_minus: torch.Tensor


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Device -> server, outside training: embeddings `h` [n, k] of the test records from `start` on."""

    m: int
    start: int
    h: torch.Tensor


@dataclass(frozen=True, slots=True)
class Release:
    """Server -> device: the clipped and noised scalar of global round `t`, for m's batch at `position`."""

    t: int
    m: int
    position: int
    Delta: float


@dataclass(frozen=True, slots=True)
class Pending:
    """What the server wants to release in round `t`; only the gate turns it into a `Release`.

    `total * grid` is the sum of clipped differences: an exact integer in units of `grid`, or without a
    clip a float64 sum in units of 1.
    """

    t: int
    m: int
    position: int
    B: int
    total: int | float
    grid: float


Message = Fill | Embeddings | Evaluation | Release
