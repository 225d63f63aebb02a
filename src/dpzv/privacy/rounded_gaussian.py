"""Gaussian noise rounded to integers, drawn exactly and quickly: for the many numbers of head steps and starts.

Noise in float64 can give away what it was added to, since not every sum can be reached from every value (Mironov, On
significance of the least significant bits for differential privacy, 2012). Here sums and noise are integers, and every
integer has the probability that the Gaussian has on the cell around it.

Numbers are drawn by rejection. The half line is cut into cells; a table says how likely each is; within a cell a point
is uniform, and it is kept with probability f(point) / f(left end of the cell). All random numbers are a few first bits
of numbers with infinitely many. Nearly always these bits decide; where they do not, more bits are drawn and compared
with 80 decimal digits. So rounding errors of float64 never decide anything.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.errors import ConfigError

__all__ = ["LARGEST_SCALE", "LEAST_SCALE", "rounded_gaussian"]

LEAST_SCALE, LARGEST_SCALE = 64.0, 2.0**57
"""The scales that can be drawn: a cell is at least one integer wide, and no number leaves 64 bits."""

CELLS = 32
"""There are at least this many cells, and fewer than twice as many, to a standard deviation."""
REACH = 20
"""The cells reach this many standard deviations. What lies beyond has probability 5e-89 and is left out."""
BITS, MORE = 63, 192
"""The first bits of a point within its cell, and how many are drawn where the first ones do not decide."""
PROPOSED = 1 << 15
"""How many numbers are proposed at once: they stay in the processor's cache."""
MARGIN = 2.0**-44
"""More than the rounding errors of an acceptance probability computed in float64, which are below 2^-49."""

_DIGITS = decimal.Context(prec=80)


class _Table(Struct, frozen=True):
    """A scale, the logarithm of the width of its cells, and the distribution function at the right end of each.

    `first` are the first 64 bits of that function, rounded down.
    """

    scale: Decimal
    log_width: int
    whole: tuple[Decimal, ...]
    first: NDArray[np.uint64]


def rounded_gaussian(scale: float, n: int, stream: np.random.Generator, *, margin: float = MARGIN) -> NDArray[np.int64]:
    """`n` independent numbers N(0, scale^2), each rounded to the nearest integer.

    Formal guarantee: if the bits of `stream` are independent and uniform, the law is within total variation 2^-180 a
    number of that of the rounded Gaussian. A larger `margin` draws more bits more often and changes no result's law.
    """
    if not LEAST_SCALE <= scale <= LARGEST_SCALE:
        raise ConfigError(
            f"noise on integers needs a scale between {LEAST_SCALE:g} and {LARGEST_SCALE:.3g}, got {scale:g}; raise or "
            "lower epsilon."
        )
    table, found, missing = _table(scale), np.empty(n, np.int64), n
    while missing:
        more = min(missing + missing // 40 + 8, PROPOSED)  # about one in eighty is rejected
        kept = _proposed(table, scale, more, stream, margin)[:missing]
        found[n - missing : n - missing + len(kept)] = kept
        missing -= len(kept)
    return found


def _proposed(table: _Table, scale: float, n: int, stream: np.random.Generator, margin: float) -> NDArray[np.int64]:
    """`n` proposals without those that are rejected; the order of what is left is that of the proposals."""
    words = stream.integers(0, 2**64, (3, n), np.uint64)
    cells = np.searchsorted(table.first, words[0], side="left")
    for i in np.flatnonzero(table.first[cells] == words[0]):
        cells[i] = _cell(table, int(words[0, i]), stream)
    points, negative = words[1] >> np.uint64(1), (words[1] & np.uint64(1)).astype(np.bool_)
    left = cells.astype(np.float64) * 2.0**table.log_width
    inside = points.astype(np.float64) * 2.0 ** (table.log_width - BITS)
    keep = np.exp(-inside * (2 * left + inside) / (2 * scale * scale))
    coin = words[2].astype(np.float64) * 2.0**-64
    accepted = coin < keep
    for i in np.flatnonzero(np.abs(coin - keep) <= margin):
        accepted[i] = _kept(table, int(cells[i]), int(points[i]), int(words[2, i]), stream)
    # the point within its cell, rounded to the nearest integer: a half is never met, since further bits follow
    shift = np.uint64(BITS - table.log_width)
    rounded = (((points >> (shift - np.uint64(1))) + np.uint64(1)) >> np.uint64(1)).astype(np.int64)
    value = (cells.astype(np.int64) << table.log_width) + rounded
    kept: NDArray[np.int64] = np.where(negative, -value, value)[accepted]
    return kept


@lru_cache(maxsize=64)
def _table(scale: float) -> _Table:
    with decimal.localcontext(_DIGITS):
        exact, log_width = Decimal(scale), math.frexp(scale / CELLS)[1] - 1
        ratio = Decimal(2) ** log_width / exact
        heights = [(-((j * ratio) ** 2) / 2).exp() for j in range(math.ceil(REACH / ratio))]
        total, below, whole = sum(heights, Decimal(0)), Decimal(0), []
        for height in heights:
            below += height
            whole.append(below / total)
        first = [min(int(value * 2**64), 2**64 - 1) for value in whole]
    return _Table(exact, log_width, tuple(whole), np.array(first, np.uint64))


def _further(stream: np.random.Generator) -> Decimal:
    """A number that is uniform between 0 and 1, to 192 bits; called in an 80 digit context."""
    return Decimal(int.from_bytes(stream.bytes(MORE // 8), "little")) / Decimal(2**MORE)


def _cell(table: _Table, word: int, stream: np.random.Generator) -> int:
    """The cell of a uniform number whose first 64 bits are `word`."""
    with decimal.localcontext(_DIGITS):
        uniform = (word + _further(stream)) / 2**64
        return next((j for j, value in enumerate(table.whole) if uniform < value), len(table.whole) - 1)


def _kept(table: _Table, cell: int, point: int, word: int, stream: np.random.Generator) -> bool:
    """Whether a point whose first bits are `point` is kept by a coin whose first 64 bits are `word`."""
    with decimal.localcontext(_DIGITS):
        width = Decimal(2) ** table.log_width
        inside = (point + _further(stream)) / 2**BITS * width
        exponent = inside * (2 * cell * width + inside) / (2 * table.scale**2)
        return bool((word + _further(stream)) / 2**64 < (-exponent).exp())
