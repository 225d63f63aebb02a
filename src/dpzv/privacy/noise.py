"""The noise of releases, heads and starts, and the secret draws of the head: one interface, two sources.

`ExactNoise` takes no seed: what it draws follows from the operating system's entropy alone, so nothing that a device
knows can reproduce it. `SeededNoise` is for simulation and tests.

Noise in float64 can give away what it was added to, since not every sum can be reached from every value (Mironov, On
significance of the least significant bits for differential privacy, 2012). So secret noise and the sums under it are
integers. OpenDP draws the few numbers of releases. `rounded_gaussian` draws the many of head steps and starts, exactly
and quickly: every integer has the probability that the Gaussian has on the cell around it.
"""

from __future__ import annotations

import decimal
import math
import os
import secrets
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.errors import ConfigError
from dpzv.rng import numbered, numpy_generator, seed_of
from dpzv.sensitivity import SUM_BITS
from dpzv.terms import NoiseSourceName

__all__ = [
    "LARGEST_SCALE",
    "LEAST_SCALE",
    "ExactNoise",
    "NoiseSource",
    "SeededNoise",
    "Totals",
    "rounded_gaussian",
]

_UNIT = NormalDist()

BLOCK = 64
"""How many integers of noise are drawn at once, unless a release needs more."""

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

Totals = NDArray[np.int64] | NDArray[np.float64]
"""The n numbers of a release before their noise, [n]."""


class SeededNoise:
    """Reproducible noise, for simulation and tests only: anybody who knows the seed can subtract it.

    The noise of a release depends on (seed, t, m) alone, so a repeated or resumed round draws the same values. The
    names of the streams ("noise", "gaussian", "generator") and the order of what follows them are a format of seeded
    runs.
    """

    name: NoiseSourceName = "seeded"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def release(
        self, totals: Totals, *, grid: float, divisor: int, sigma_dp: float, t: int, m: int
    ) -> NDArray[np.float64]:
        """``Delta = totals * grid / divisor + N(0, sigma_dp^2)`` of round `t` for device `m`, one number per total.

        `totals` are exact integers in units of `grid` when there is a clip, float64 in units of 1 (``grid = 1``) when
        there is none.
        """
        if sigma_dp == 0 or len(totals) > 1:
            means = totals * grid / divisor
            if sigma_dp == 0:
                return means
            return means + sigma_dp * numpy_generator(self._seed, "noise", t, m).standard_normal(len(means))
        # A single value is a hash put through the inverse normal distribution function, which is eight times cheaper
        # than a new generator. 52 bits are used, so that the midpoint of each cell is a float64 strictly between 0
        # and 1.
        cell = seed_of(self._seed, "noise", t, m) >> 11
        return np.array([float(totals[0]) * grid / divisor + sigma_dp * _UNIT.inv_cdf((cell + 0.5) / 2.0**52)])

    def ahead(self, rounds: Sequence[tuple[int, int]], n: int, sigma_dp: float) -> NDArray[np.float64]:
        """The noise that `release` adds to n totals in each of the `rounds` (t, m), [rounds, n], without the totals."""
        if n > 1 or sigma_dp == 0:
            release = partial(self.release, np.zeros(n), grid=1.0, divisor=1, sigma_dp=sigma_dp)
            return np.array([release(t=t, m=m) for t, m in rounds])
        seeds = {m: numbered((self._seed, "noise"), (m,)) for m in {m for _, m in rounds}}
        cells = [(seeds[m](t) >> 11) + 0.5 for t, m in rounds]
        return sigma_dp * np.array([[_UNIT.inv_cdf(cell / 2.0**52)] for cell in cells])

    def grid(self, clip: float) -> float:
        """0: sums that get simulated noise stay as they are."""
        return 0.0

    def added(self, scales: NDArray[np.float64], grid: float, *stream: int | str) -> NDArray[np.float64]:
        """Gaussian noise with these standard deviations."""
        return scales * self.gaussian(scales.shape, *stream)

    def gaussian(self, shape: tuple[int, ...], *stream: int | str) -> NDArray[np.float64]:
        """Standard normal values of `shape`."""
        return numpy_generator(self._seed, "gaussian", *stream).standard_normal(shape)

    def generator(self, *stream: int | str) -> np.random.Generator:
        """The generator that (seed, stream) names, at its start, for other secret draws of the head."""
        return numpy_generator(self._seed, "generator", *stream)


class ExactNoise:
    """Secret noise. Releases get the discrete Gaussian on integers (OpenDP); nothing here can be repeated.

    Formal guarantee: `release` adds to every integer of `totals` exact discrete Gaussian noise of scale
    ``sigma_dp * divisor / grid`` and then scales; all floating-point arithmetic is post-processing of that integer.
    `added` is Gaussian noise rounded to the same grid as the sums that it is added to (heads, starts). Generators are
    keyed by the operating system and never stored.
    """

    name: NoiseSourceName = "exact"

    def __init__(self) -> None:
        # noise that is drawn and not used yet, and the scale and the process that it was drawn for
        self._ahead: list[int] = []
        self._of = (0.0, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy draws noise of its own, since noise that is used twice could be subtracted."""
        return type(self), ()

    def release(
        self, totals: Totals, *, grid: float, divisor: int, sigma_dp: float, t: int, m: int
    ) -> NDArray[np.float64]:
        """``Delta = (totals + discrete Gaussian) * grid / divisor``; with ``sigma_dp = 0`` exactly the means."""
        if sigma_dp == 0:
            return totals * grid / divisor
        if totals.dtype != np.int64:
            raise ConfigError(f"noise on integers needs integer sums, got {totals.dtype}; clip with a finite C.")
        scale = sigma_dp * divisor / grid
        # the check uses public numbers only: a total is at most divisor * 2^40, and noise never passes 64 scales
        if not divisor * 2.0**40 + 64 * scale < 2.0**63:
            raise ConfigError(
                f"noise of {scale:.3g} grid steps does not fit in 64 bits; raise epsilon or plan fewer rounds."
            )
        return (totals + self._drawn(scale, len(totals))) * grid / divisor

    def _drawn(self, scale: float, n: int) -> NDArray[np.int64]:
        """n integers of discrete Gaussian noise, used once.

        Noise does not depend on what it is added to, so integers are drawn ahead in blocks: a call of OpenDP costs ten
        times as much as a draw. They are kept in memory only; a forked process and a copy draw their own.
        """
        if self._of != (scale, os.getpid()):
            self._ahead, self._of = [], (scale, os.getpid())
        if len(self._ahead) < n:
            self._ahead += _discrete_gaussian(scale)([0] * max(n, BLOCK))
        drawn = self._ahead[-n:]
        del self._ahead[-n:]
        return np.array(drawn, np.int64)

    def grid(self, clip: float) -> float:
        """The grid to which sums of terms of norm at most `clip` are rounded before `added`: a power of 2."""
        return math.ldexp(1.0, math.frexp(clip)[1] - 1 - SUM_BITS)

    def added(self, scales: NDArray[np.float64], grid: float, *stream: int | str) -> NDArray[np.int64]:
        """Gaussian noise with these standard deviations, rounded to integers of `grid`."""
        found, secret = np.empty(scales.shape, np.int64), self.generator()
        for scale in np.unique(scales):
            here = scales == scale
            found[here] = rounded_gaussian(float(scale) / grid, int(here.sum()), secret)
        return found

    def gaussian(self, shape: tuple[int, ...], *stream: int | str) -> NDArray[np.float64]:
        """Fresh standard normal values of `shape`, for embeddings on their way up; `stream` only names their use."""
        return self.generator().standard_normal(shape)

    def generator(self, *stream: int | str) -> np.random.Generator:
        """A generator under a new 128-bit key of the operating system; its state must not be stored."""
        return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


NoiseSource = SeededNoise | ExactNoise
"""Where the noise comes from. `name` is the source as the configuration and the statement call it."""


@lru_cache(maxsize=64)
def _discrete_gaussian(scale: float) -> Any:
    """OpenDP's measurement on 64-bit integers (its plain `int` has 32 bits and saturates)."""
    # imported here: simulations and calculators never need it
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=scale)


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

    Numbers are drawn by rejection. The half line is cut into cells; a table says how likely each is; within a cell a
    point is uniform, and it is kept with probability f(point) / f(left end of the cell). All random numbers are a few
    first bits of numbers with infinitely many. Nearly always these bits decide; where they do not, more bits are drawn
    and compared with 80 decimal digits. So rounding errors of float64 never decide anything.

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
