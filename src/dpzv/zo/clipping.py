"""The clip that bounds one record's influence, and the exact sum of clipped differences."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.terms import Neighbours
from dpzv.validate import positive

__all__ = ["GRID_BITS", "Clip", "ClippedSum", "clipped_sum"]

GRID_BITS = 40
"""The grid of the exact sum has 2^40 steps from 0 to `C`."""

MOST_RECORDS = 1 << 20
"""2^20 records of at most 2^40 steps each stay within a 64-bit integer."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Clips `delta_zo` to [-C, C]; a non-finite value becomes 0. `C` may be infinite (no privacy).

    Formal guarantee: the term of a record depends on that record's `delta_zo` alone and has absolute value at
    most `C`, so the sum over a batch moves by at most `sensitivity(neighbours)` between neighbours.
    """

    C: float

    def __post_init__(self) -> None:
        positive("C", self.C)

    def __call__(self, delta_zo: Tensor) -> Tensor:
        """Clipped terms, float64 [B]."""
        finite = torch.nan_to_num(delta_zo.double(), nan=0.0, posinf=0.0, neginf=0.0)
        return finite.clamp(-self.C, self.C)

    def sensitivity(self, neighbours: Neighbours) -> float:
        """The most the *sum* of clipped terms moves: `2*C` for replace-one, `C` for zero-out."""
        return 2 * self.C if neighbours == "replace-one" else self.C


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A batch's sum of clipped terms is `total * grid`; `total` counts grid steps.

    Without a clip (`C` infinite) there is no grid: `grid` is 1 and `total` the plain float64 sum.
    """

    total: int | float
    grid: float


def clipped_sum(delta_zo: Tensor, C: float, contributes: Tensor | None = None) -> ClippedSum:
    """The exact sum of a batch's clipped `delta_zo` [B]; records where `contributes` [B] is false add 0.

    Each term is rounded to `n_i = round(clip / g)` with `g = C / 2^40`, and the integers are summed.
    Formal guarantee: between neighbours `total` moves by at most `sensitivity / g`, with no rounding error;
    the order of the records does not matter.
    """
    B = len(delta_zo)
    if B > MOST_RECORDS:
        raise ConfigError(f"a batch must have at most {MOST_RECORDS} records, got {B}; lower train.B.")
    terms = Clip(C)(delta_zo)
    if contributes is not None:
        terms = torch.where(contributes, terms, 0.0)
    if math.isinf(C):
        return ClippedSum(float(terms.sum()), 1.0)
    grid = math.ldexp(C, -GRID_BITS)
    # |terms| <= C makes the quotient at most 2^40, where float64 still has steps far below 1
    return ClippedSum(int((terms / grid).round().to(torch.int64).sum()), grid)
