"""`known-seeds`: regenerate noise from every seed that a device knows, subtract it, and look at what is left.

Noise that can be regenerated protects nothing, and no statistic of the releases alone can see that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.lower_bound import Evidence
from dpzv.attacks.strategies import FEW, both_worlds, canary_at_the_clip, of_releases
from dpzv.attacks.target import Target, Transcript
from dpzv.privacy.noise import SeededNoise
from dpzv.rng import seed_of

__all__ = ["known_seeds"]

Round = tuple[int, int, int]
"""(t, m, position) of a release."""

Guess = Callable[[int, Round], NDArray[np.float64]]
"""A guess of the K standard normal values behind the noise of one release, from the run's seed."""

Seed = Callable[[int, Round], int]
"""A seed that a device can compute, from the run's seed and a release."""

Draw = Callable[[int, Round, int], NDArray[np.float64]]
"""That many values of a generator under a seed, for the noise of a release."""

PILOT = 32
"""Runs of each world by which the guess is chosen; they are not scored."""


def known_seeds(target: Target, n: int) -> Evidence:
    """The canary of `matched_filter`, with the best guess of the noise subtracted.

    The guess is chosen on runs of its own, by the variance it leaves within a world.
    """
    total = n + PILOT
    low, high, plan = both_worlds(target, total, FEW, lambda machine, world: canary_at_the_clip(machine, world, total))
    seed, sigma_dp, K = target.config.train.seed, plan.sigma_dp, plan.directions

    def left(seen: Transcript, guess: Guess, runs: slice) -> NDArray[np.float64]:
        """The sum of the releases of each run, less the guessed noise."""
        rounds = [zip(t, seen.m, position, strict=True) for t, position in zip(seen.t, seen.position, strict=True)]
        noise = [sum(guess(seed, (int(t), int(m), int(k))).sum() for t, m, k in run) for run in rounds[runs]]
        found: NDArray[np.float64] = seen.common[runs].sum(axis=1) - sigma_dp / math.sqrt(K) * np.array(noise)
        return found

    pilot, scored = slice(0, PILOT), slice(PILOT, total)
    best = min(_guesses(K), key=lambda guess: float(sum(np.var(left(seen, guess, pilot)) for seen in (low, high))))
    return of_releases(plan, left(low, best, scored), left(high, best, scored), 0.0)


def _guesses(K: int) -> Iterator[Guess]:
    """Every known seed in every usual generator: one seed for the K numbers of a message, or one for each of them."""

    def together(name: Seed, draw: Draw) -> Guess:
        return lambda seed, where: draw(name(seed, where), where, K)

    def apart(name: Seed, draw: Draw) -> Guess:
        def guess(seed: int, where: Round) -> NDArray[np.float64]:
            t, m, position = where
            return np.concatenate([draw(name(seed, (t, m, position * K + j)), where, 1) for j in range(K)])

        return guess

    for draw in _DRAWS:
        yield from (together(name, draw) for name in (*_SEEDS, *_NUMBERED))
        if K > 1:
            yield from (apart(name, draw) for name in _NUMBERED)


# (seed, (t, m, position)) -> a seed that a device can compute; the names of the streams are those of `rng` in a run
_SEEDS: tuple[Seed, ...] = (
    lambda seed, where: seed,
    lambda seed, where: seed + where[0],
    lambda seed, where: seed_of(seed, "noise"),
    lambda seed, where: seed_of(seed, "noise", where[0], where[1]),
    lambda seed, where: seed_of(seed, "direction", where[1], where[0]),
    lambda seed, where: seed_of(seed, "direction", 0, where[0]),
    lambda seed, where: seed_of(seed, "schedule", where[1]),
    lambda seed, where: seed_of(seed, "start", where[1]),
)

# those by position: direction j of the batch at a position is number position*K + j of its stream
_NUMBERED: tuple[Seed, ...] = (
    lambda seed, where: seed_of(seed, "noise", where[1], where[2]),
    lambda seed, where: seed_of(seed, "direction", where[1], where[2]),
)


def _gauss(seed: int, K: int) -> NDArray[np.float64]:
    generator = random.Random(seed)
    return np.array([generator.gauss() for _ in range(K)])


_DRAWS: tuple[Draw, ...] = (
    lambda seed, where, K: SeededNoise(seed).release(
        np.zeros(K), grid=1.0, divisor=1, sigma_dp=1.0, t=where[0], m=where[1]
    ),
    lambda seed, where, K: np.random.default_rng(seed).standard_normal(K),
    lambda seed, where, K: _gauss(seed, K),
    lambda seed, where, K: torch.randn(K, generator=torch.Generator().manual_seed(seed)).double().numpy(),
)
