"""How far one record moves a sum, for each relation between neighbours: the only place where these factors are written.

Code that clips (`zo/`, `models/starts.py`) and code that calibrates noise (`privacy/`) read the same numbers here.
"""

from __future__ import annotations

import math

from dpzv.terms import Neighbours

__all__ = [
    "GRID_BITS",
    "MIRRORED",
    "MOST_SUMMED",
    "SUM_BITS",
    "SUM_CHUNK",
    "clip_factor",
    "euclidean_clip",
    "histogram_factor",
    "outer_product_factor",
]

GRID_BITS = 40
"""The grid on which clipped values are summed has 2^40 steps from 0 to `C`."""

SUM_BITS = 36
"""The grid to which the float64 sums of heads and starts are rounded has at least 2^36 steps from 0 to the clip."""

SUM_CHUNK = 8192
"""About how many terms of heads and starts are summed in float64, before the sum is rounded to the grid. One record is
in one such sum only, so the size of the whole sum does not matter."""

MOST_SUMMED = 1 << 24
"""The most records whose sum surely fits in 64 bits on that grid, noise included."""

MIRRORED = math.sqrt(2)
"""An entry beside the diagonal of a symmetric matrix stands there twice: it counts this much in the Frobenius norm."""


def euclidean_clip(C: float, K: int) -> float:
    """The Euclidean norm to which one record's K numbers are clipped together, where `C` is meant for each of them.

    With this norm the noise on each number is the same for every K, at the same number of messages times K.
    """
    return C * math.sqrt(K)


def clip_factor(neighbours: Neighbours) -> float:
    """How far one record moves a sum of values (or vectors) clipped to norm `C`, in units of `C`.

    Removing a term moves the sum by at most C. Replacing a term turns -C into C at worst.
    """
    return 2.0 if neighbours == "replace-one" else 1.0


def outer_product_factor(neighbours: Neighbours) -> float:
    """How far one record moves a sum of outer products v v^T, in Frobenius norm and units of the largest ||v||^2.

    Replacing a row v by w moves it by ``||v v^T - w w^T||_F <= sqrt(||v||^4 + ||w||^4)``, since the cross term
    ``-2 (v.w)^2`` of the square only makes it smaller.
    """
    return math.sqrt(2) if neighbours == "replace-one" else 1.0


def histogram_factor(neighbours: Neighbours) -> float:
    """How far one record moves the numbers of records in disjoint classes, in Euclidean norm.

    Removing a record lowers one number by 1. Replacing it may also raise another one by 1.
    """
    return math.sqrt(2) if neighbours == "replace-one" else 1.0
