"""The clip that bounds one record's influence, and the exact sum of clipped differences."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.errors import ConfigError
from dpzv.sensitivity import GRID_BITS

__all__ = ["ClippedSum", "clipped_rows", "clipped_sum"]

MOST_RECORDS = 1 << 20
"""2^20 records of at most 2^40 steps each stay within a 64-bit integer."""

MOST_NUMBERS = 1 << 16
"""The most numbers of one record that are clipped together; with more, the error of their norm would be too large."""

INSIDE = 2.0**GRID_BITS * (1 - 2.0**-36)
"""The length in grid steps to which longer vectors are scaled: inside the bound of 2^40 by more than float64 errs."""


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
    rows: NDArray[np.float64], C: float, contributes: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64] | NDArray[np.float64], float]:
    """Each record's vector of `rows` [B, n] clipped to norm `C`: exact integers [B, n] and their unit, the grid.

    A vector with a non-finite entry, or of a record where `contributes` is false, becomes zeros. Without a clip the
    numbers come back as float64 with a grid of 1.
    Formal guarantee: the integers of a record depend on its vector alone, and the sum of their squares is at most
    (2^40)^2, exactly. So between neighbours they move by at most ``clip_factor(neighbours) * C / grid`` in norm, and
    those of other records do not move.

    Why: `unit` is the vector over its largest entry, so one entry is 1 or -1. Its norm is computed from at most 2^16
    squares, in whatever order they are added, to a relative 2^-37 (each addition errs by 2^-53, and squares too small
    for float64 are far below that). `size` is at most INSIDE over that norm, and division and product err by 2^-53
    each, so the products have norm at most 2^40 * (1 - 2^-36) * (1 + 2^-37) * (1 + 2^-50), which is below 2^40.
    Rounding towards zero makes no entry larger.
    """
    if len(rows) > MOST_RECORDS or rows.shape[1] > MOST_NUMBERS:
        raise ConfigError(
            f"a batch must have at most {MOST_RECORDS} records of {MOST_NUMBERS} numbers each, got {len(rows)} of "
            f"{rows.shape[1]}; lower train.B or the number of directions."
        )
    terms, keep = rows, np.logical_and.reduce(np.isfinite(rows), axis=1)
    keep = keep if contributes is None else keep & contributes
    if not keep.all():
        terms = np.where(keep[:, None], rows, 0.0)
    if math.isinf(C):
        return terms, 1.0
    grid = math.ldexp(C, -GRID_BITS)
    largest = np.maximum.reduce(np.abs(terms), axis=1)
    largest[largest == 0] = grid  # rows of zeros stay zeros, whatever divides them
    unit = terms / largest[:, None]
    norm = np.sqrt(np.add.reduce(np.square(unit), axis=1))
    with np.errstate(over="ignore"):  # a quotient may overflow; then the other one is taken
        size = np.minimum(largest / grid, INSIDE / np.maximum(norm, 1.0))
    unit *= size[:, None]
    return unit.astype(np.int64), grid  # `astype` rounds towards zero
