"""The public bound on embeddings: what a device may send the server, decided for each row by that row alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST", "bounded", "within", "zeroed"]

LARGEST = 65504.0
"""The largest size of a number in an embedding: that of a half, so that both codecs keep the same rows.

Networks give numbers near 1. Beyond the bound a head's losses would come to infinity and its weights to nothing.
"""


def within(h: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows [B] of `h` have finite numbers of at most `LARGEST` only."""
    kept: NDArray[np.bool_] = np.logical_and.reduce(np.abs(h) <= np.float32(LARGEST), axis=1)
    return kept


def zeroed(h: NDArray[np.float32], keep: NDArray[np.bool_]) -> NDArray[np.float32]:
    """`h` with the rows that are not kept as zeros."""
    return np.where(keep[:, None], h, np.float32(0))


def bounded(
    arrays: tuple[NDArray[np.float32], ...],
) -> tuple[tuple[NDArray[np.float32], ...], NDArray[np.bool_] | None]:
    """The arrays of a batch, with zeros in rows that are beyond the bound in any of them, and which rows [B] are kept.

    `None` means all. Rows are looked at one by one only if the sum of all squares is large or not a number. Rounded or
    not, the sum is at least its largest term, and half the square of the bound leaves room for the rounding of that
    term. So no row beyond the bound is ever taken for one within it, whatever the other rows are.
    """
    squares = 0.0
    for h in arrays:
        squares += float(np.vdot(h, h))
    if squares <= LARGEST * LARGEST / 2:  # false also for nan
        return arrays, None
    kept: NDArray[np.bool_] = np.logical_and.reduce([within(h) for h in arrays])
    return tuple(zeroed(h, kept) for h in arrays), kept
