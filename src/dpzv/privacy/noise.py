"""The noise of releases, heads and starts, and the secret draws of the head: one interface, two sources.

`ExactNoise` takes no seed: what it draws follows from the operating system's entropy alone, so nothing that a device
knows can reproduce it. `SeededNoise` is for simulation and tests.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import ConfigError
from dpzv.privacy.rounded_gaussian import rounded_gaussian
from dpzv.rng import numbered, numpy_generator, seed_of
from dpzv.sensitivity import SUM_BITS
from dpzv.terms import NoiseSourceName

__all__ = ["ExactNoise", "NoiseSource", "SeededNoise", "Totals"]

_UNIT = NormalDist()

BLOCK = 64
"""How many integers of noise are drawn at once, unless a release needs more."""

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
