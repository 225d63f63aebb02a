"""The clip that bounds one record's influence, and the exact sum of clipped differences."""

from __future__ import annotations

import math

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.sensitivity import GRID_BITS

__all__ = ["ClippedSum", "clipped_rows", "clipped_sum"]

MOST_RECORDS = 1 << 20
"""2^20 records of at most 2^40 steps each stay within a 64-bit integer."""


class ClippedSum(Struct, frozen=True):
    """A batch's sum of clipped terms, which is `total * grid`: `total` counts grid steps.

    Without a clip (`C` infinite) there is no grid: `grid` is 1 and `total` the plain float64 sum.
    """

    total: int | float
    grid: float


def clipped_sum(delta_zo: NDArray[np.float64], C: float, contributes: NDArray[np.bool_] | None = None) -> ClippedSum:
    """The exact sum of a batch's `delta_zo` [B], each clipped to [-C, C]; 0 for records where `contributes` is false.

    A value that is not finite becomes 0. `C` may be infinite (no privacy). Each term is rounded to `n_i = round(clip /
    g)` with `g = C / 2^40`, and the integers are summed. Formal guarantee: the term of a record depends on that
    record's `delta_zo` alone and has absolute value at most `C / g`, so between neighbours `total` moves by at most
    ``clip_factor(neighbours) * C / g``, with no rounding error; the order of the records does not matter.
    """
    if not C > 0:
        raise ConfigError(f"C must be above 0, got {C}; set C to a positive number.")
    B = len(delta_zo)
    if B > MOST_RECORDS:
        raise ConfigError(f"a batch must have at most {MOST_RECORDS} records, got {B}; lower train.B.")
    terms = np.maximum(delta_zo, -C)
    np.minimum(terms, C, out=terms)
    finite = np.isfinite(delta_zo)
    if not finite.all():
        terms[~finite] = 0.0
    if contributes is not None:
        terms[~contributes] = 0.0
    if math.isinf(C):
        return ClippedSum(float(terms.sum()), 1.0)
    grid = math.ldexp(C, -GRID_BITS)
    # |terms| <= C makes the quotient at most 2^40, where float64 still has steps far below 1
    terms /= grid
    return ClippedSum(int(np.add.reduce(np.rint(terms, out=terms).astype(np.int64))), grid)


def clipped_rows(
    rows: Tensor, C: float, contributes: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64] | NDArray[np.float64], float]:
    """Each record's vector of `rows` [B, k] clipped to norm `C`: exact integers [B*k] and their unit, the grid.

    A vector with a non-finite entry, or of a record where `contributes` is false, becomes zeros. Without a clip the
    numbers come back as float64 with a grid of 1.
    Formal guarantee: the integers of a record depend on its vector alone and have norm at most `C` / grid, so between
    neighbours they move by at most ``clip_factor(neighbours) * C`` / grid, and those of other records do not move.
    """
    if len(rows) > MOST_RECORDS:
        raise ConfigError(f"a batch must have at most {MOST_RECORDS} records, got {len(rows)}; lower train.B.")
    keep = rows.isfinite().all(dim=1)
    keep = keep if contributes is None else keep & torch.from_numpy(contributes).to(keep.device)
    terms = torch.where(keep[:, None], rows.double(), 0.0)
    if math.isinf(C):
        return terms.reshape(-1).cpu().numpy(), 1.0
    grid = math.ldexp(C, -GRID_BITS)
    # rounding moves an entry by at most half a step, so the norm by sqrt(k)/2 steps; as much again covers float64
    inside = C - math.sqrt(rows.shape[1]) * grid
    largest = terms.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    norms = largest * torch.linalg.vector_norm(terms / largest, dim=1, keepdim=True)  # no square of a huge entry
    terms = terms * (inside / norms.clamp(min=inside))
    return (terms / grid).round().to(torch.int64).reshape(-1).cpu().numpy(), grid
