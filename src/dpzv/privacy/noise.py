"""The noise of releases and starts, behind one interface with a reproducible and (later) a secret source."""

from __future__ import annotations

from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpzv.rng import numpy_generator, seed_of
from dpzv.terms import NoiseSourceName

__all__ = ["NoiseSource", "SeededNoise"]

_UNIT = NormalDist()


class NoiseSource(Protocol):
    """Where the noise comes from."""

    @property
    def name(self) -> NoiseSourceName:
        """The source as the configuration and the statement call it."""
        ...

    def release(self, *, total: float, grid: float, B: int, sigma_dp: float, t: int, m: int) -> float:
        """``Delta = total * grid / B + N(0, sigma_dp^2)`` of round `t` for device `m`.

        `total` is the clipped sum over the batch: an exact integer in units of `grid` when the clip is
        finite, a float64 in units of 1 (``grid = 1``) when there is none.
        """
        ...

    def gaussian(self, shape: tuple[int, ...], *stream: int | str) -> NDArray[np.float64]:
        """Standard normal values of `shape`, for quantities that never leave their process (starts)."""
        ...


class SeededNoise:
    """Reproducible noise, for simulation and tests only: whoever knows the seed can subtract it.

    The noise of a release depends on (seed, t, m) alone, so a repeated or resumed round draws the same value.
    """

    name: NoiseSourceName = "seeded"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def release(self, *, total: float, grid: float, B: int, sigma_dp: float, t: int, m: int) -> float:
        """``Delta = total * grid / B + N(0, sigma_dp^2)``; with ``sigma_dp = 0`` exactly the mean."""
        mean = total * grid / B
        if sigma_dp == 0:
            return mean
        # A hash through the inverse normal distribution function: eight times cheaper than a new generator.
        # 52 bits, so that the midpoint of each cell is a float64 strictly between 0 and 1.
        cell = seed_of(self._seed, "noise", t, m) >> 11
        return mean + sigma_dp * _UNIT.inv_cdf((cell + 0.5) / 2.0**52)

    def gaussian(self, shape: tuple[int, ...], *stream: int | str) -> NDArray[np.float64]:
        """Standard normal values of `shape` for the stream called `stream`."""
        return numpy_generator(self._seed, "gaussian", *stream).standard_normal(shape)
