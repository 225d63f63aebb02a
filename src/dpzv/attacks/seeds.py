"""`known-seeds`: regenerate noise from every seed that a device knows, subtract it, and look at what is left.

Noise that can be regenerated protects nothing, and no statistic of the releases alone can see that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.bound import Evidence
from dpzv.attacks.strategies import FEW, both_worlds, canary_at_the_clip, of_releases
from dpzv.attacks.target import Target, Transcript
from dpzv.privacy.noise import SeededNoise
from dpzv.rng import seed_of

__all__ = ["known_seeds"]

Round = tuple[int, int, int]
"""(t, m, position) of a release."""

Guess = Callable[[int, Round], float]
"""A guess of the standard normal value behind the noise of one release, from the run's seed."""

PILOT = 32
"""Runs of each world by which the guess is chosen; they are not scored."""


def known_seeds(target: Target, n: int) -> Evidence:
    """The canary of `matched_filter`, with the best guess of the noise subtracted.

    The guess is chosen on runs of its own, by the variance it leaves within a world.
    """
    total = n + PILOT
    low, high, plan = both_worlds(target, total, FEW, lambda machine, world: canary_at_the_clip(machine, world, total))
    seed, sigma_dp = target.config.train.seed, plan.sigma_dp

    def left(seen: Transcript, guess: Guess, runs: slice) -> NDArray[np.float64]:
        """The sum of the releases of each run, less the guessed noise."""
        rounds = [zip(t, seen.m, position, strict=True) for t, position in zip(seen.t, seen.position, strict=True)]
        noise = [sum(guess(seed, (int(t), int(m), int(k))) for t, m, k in run) for run in rounds[runs]]
        found: NDArray[np.float64] = seen.Delta[runs].sum(axis=1) - sigma_dp * np.array(noise)
        return found

    pilot, scored = slice(0, PILOT), slice(PILOT, total)
    best = min(_guesses(), key=lambda guess: float(sum(np.var(left(seen, guess, pilot)) for seen in (low, high))))
    return of_releases(plan, left(low, best, scored), left(high, best, scored), 0.0)


def _guesses() -> Iterator[Guess]:
    """Every known seed in every usual generator."""
    for name in _SEEDS:
        for draw in _DRAWS:
            yield lambda seed, where, name=name, draw=draw: draw(name(seed, where), where)  # type: ignore[misc]


# (seed, (t, m, position)) -> a seed that a device can compute; the names of the streams are those of `rng` in a run
_SEEDS: tuple[Callable[[int, Round], int], ...] = (
    lambda seed, where: seed,
    lambda seed, where: seed + where[0],
    lambda seed, where: seed_of(seed, "noise"),
    lambda seed, where: seed_of(seed, "noise", where[0], where[1]),
    lambda seed, where: seed_of(seed, "noise", where[1], where[2]),
    lambda seed, where: seed_of(seed, "direction", where[1], where[2]),
    lambda seed, where: seed_of(seed, "direction", where[1], where[0]),
    lambda seed, where: seed_of(seed, "direction", 0, where[0]),
    lambda seed, where: seed_of(seed, "schedule", where[1]),
    lambda seed, where: seed_of(seed, "start", where[1]),
)


def _like_ours(seed: int, where: Round) -> float:
    noise = SeededNoise(seed).release(np.zeros(1), grid=1.0, divisor=1, sigma_dp=1.0, t=where[0], m=where[1])
    return float(noise[0])


_DRAWS: tuple[Callable[[int, Round], float], ...] = (
    _like_ours,
    lambda seed, where: float(np.random.default_rng(seed).standard_normal()),
    lambda seed, where: random.Random(seed).gauss(),
    lambda seed, where: float(torch.randn((), generator=torch.Generator().manual_seed(seed))),
)
