"""A second accountant for sampled head steps beside a Gaussian, which shares no code and no method with the first.

The privacy loss is put on a grid, rounded up for an upper and down for a lower bound, and composed by adding products
one by one, without Fourier transforms. All terms are positive, so every sum is right to a relative 1e-10, however small
it is. It is slow, so it is for small cases only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpzv.terms import Neighbours

CELLS, REACH = 400_000, 15.0
"""Cells of the line for one step, and the standard deviations that they reach; less than 1e-49 lies beyond."""
TRIMMED = 1e-45
"""Ends of a distribution with less than this mass are cut off: they count as 0 below and as infinite loss above."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """A privacy loss on multiples of the interval: `mass` from the multiple `first` on, the rest at infinity."""

    first: int
    mass: Array
    infinite: float


def delta_bounds(
    epsilons: list[float],
    *,
    mu: float,
    steps: tuple[tuple[float, float, int], ...],
    neighbours: Neighbours,
    interval: float,
) -> list[tuple[float, float]]:
    """A lower and an upper bound on the delta of each epsilon, for a Gaussian of `mu` and steps (q, z, number)."""
    bounds = np.zeros((len(epsilons), 2))
    for order in range(1 if neighbours == "replace-one" else 2):
        for side, up in enumerate((False, True)):
            losses = [_power(_step(q, z, neighbours, order, up, interval), n) for q, z, n in steps]
            if mu:
                losses.append(_gaussian(mu, up, interval))
            whole = reduce(_both, losses)
            found = [_delta(whole, epsilon, up, interval) for epsilon in epsilons]
            bounds[:, side] = np.maximum(bounds[:, side], found)
    return [(low, high) for low, high in bounds.tolist()]


def _step(q: float, z: float, neighbours: Neighbours, order: int, up: bool, interval: float) -> Loss:
    """One step: (1-q) N(0, z^2) + q N(1, z^2) against its mirror image, or against N(0, z^2) in either order."""
    x = np.linspace(-REACH * z, REACH * z + 1, CELLS + 1)
    with_it = np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))  # log density over that of N(0, z^2)
    if neighbours == "replace-one":
        loss, mass = with_it - np.log1p(q * np.expm1((-2 * x - 1) / (2 * z * z))), _mixture(x, q, z)
    elif order == 0:
        loss, mass = with_it, _mixture(x, q, z)
    else:
        loss, mass = -with_it, _mixture(x, 0.0, z)
    return _on_grid(loss, mass, up, interval)


def _gaussian(mu: float, up: bool, interval: float) -> Loss:
    x = np.linspace(-REACH, REACH, CELLS + 1)
    return _on_grid(mu * x + mu * mu / 2, _masses(x), up, interval)


def _mixture(x: Array, q: float, z: float) -> Array:
    return (1 - q) * _masses(x / z) + q * _masses((x - 1) / z)


def _masses(x: Array) -> Array:
    """The mass of N(0, 1) between neighbours of `x`, from the nearer tail."""
    left = np.diff(ndtr(x))
    right = -np.diff(ndtr(-x))
    return np.where(x[1:] < 0, left, right)


def _on_grid(loss: Array, mass: Array, up: bool, interval: float) -> Loss:
    """Each cell's mass at its largest loss rounded up, or at its least rounded down."""
    ends = loss[:-1], loss[1:]
    at = np.ceil(np.maximum(*ends) / interval) if up else np.floor(np.minimum(*ends) / interval)
    first = int(at.min())
    return _trimmed(Loss(first, np.bincount((at - first).astype(int), mass), 1e-48), up)


def _trimmed(loss: Loss, up: bool) -> Loss:
    low = int(np.searchsorted(np.cumsum(loss.mass), TRIMMED))
    above = np.cumsum(loss.mass[::-1])
    cut = int(np.searchsorted(above, TRIMMED))
    high = len(loss.mass) - cut
    infinite = loss.infinite + (float(above[cut - 1]) if cut else 0.0)
    mass = loss.mass[low:high].copy()
    if up:  # nothing may get lost: what is cut off below stays at the least loss that is kept
        mass[0] += float(loss.mass[:low].sum())
    return Loss(loss.first + low, mass, infinite if up else 0.0)


def _both(a: Loss, b: Loss) -> Loss:
    up = a.infinite > 0
    return _trimmed(Loss(a.first + b.first, np.convolve(a.mass, b.mass), a.infinite + b.infinite), up)


def _power(loss: Loss, n: int) -> Loss:
    if n == 1:
        return loss
    half = _power(loss, n // 2)
    whole = _both(half, half)
    return _both(whole, loss) if n % 2 else whole


def _delta(loss: Loss, epsilon: float, up: bool, interval: float) -> float:
    values = (loss.first + np.arange(len(loss.mass))) * interval
    found = math.fsum(loss.mass * -np.expm1(np.minimum(epsilon - values, 0.0)))
    # masses are differences of tails and sums of at most 2^20 products, each right to far less than this
    return found * (1 + 1e-9) + loss.infinite if up else found * (1 - 1e-9)
