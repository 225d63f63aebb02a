"""The matched filter adds up what all devices see of the canary. The noise is secret, so every run is a new draw: how
often a correct build fails the bar, and how often a faulty one passes it, is computed beside the test.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attack_targets import strategy
from numpy.typing import NDArray
from scipy.special import betainccinv, ndtri
from scipy.stats import binom, norm

from dpzv import config as configuration
from dpzv import recipes
from dpzv.attacks.audit import CONFIDENCE, attack, strategies
from dpzv.attacks.strategies import FEW
from dpzv.attacks.target import Target, target_of
from dpzv.privacy.noise import ExactNoise, NoiseSource, Totals

TRIALS, BAR = 8000, 0.72
"""Runs per world, and the share of the claimed mu that they must show."""


def digits(noise: NoiseSource) -> Target:
    """The recipe with four devices."""
    return target_of(configuration.parse(recipes.tree("digits")), noise)


def shown(noise: NoiseSource) -> float:
    """The share of the claimed mu that the releases of all devices show together."""
    return attack(digits(noise), strategy("matched-filter"), TRIALS).noise_factor


class WithoutTheLast(ExactNoise):
    """The fourth device's releases are noise alone."""

    def release(self, totals: Totals, **rest: Any) -> NDArray[np.float64]:
        return super().release(totals * (rest["m"] != 4), **rest)


def test_the_canary_of_all_devices_together_is_seen() -> None:
    assert BAR < shown(ExactNoise()) <= 1


def test_the_canary_of_all_devices_but_one_is_not_enough() -> None:
    assert 0 < shown(WithoutTheLast()) <= BAR


def chances(devices: int, trials: int, bar: float) -> tuple[float, float]:
    """The probabilities that the share shown is at most `bar`, and that it is above 1, if `devices` of four add terms.

    A score is the sum of four releases. Its mean is +C/B or -C/B times `devices`, its deviation 2 sigma_dp, and the
    errors of the two worlds are independent binomials.
    """
    target = digits(ExactNoise())
    with target.machine(B=FEW, batches=trials + 2, rounds=target.M * (trials + 2)) as machine:
        unit = machine.plan.C / (machine.plan.B * machine.plan.sigma_dp)  # of one device's release
    claimed = 2 * math.sqrt(target.M) * unit
    errors = np.arange(trials + 1)
    alpha = (1 - CONFIDENCE) / len(strategies(1)) / 2  # of one world
    bound = np.append(betainccinv(errors[:-1] + 1, trials - errors[:-1], alpha), 1.0)
    share = -ndtri(bound) / claimed  # a world's part of the share shown; it falls with the errors
    law = binom(trials, norm.sf(devices / math.sqrt(target.M) * unit))
    # for every number of errors in one world, the least in the other with which the sum is at most this
    least = [np.searchsorted(-share, share - most, side="left") for most in (bar, 1.0)]
    at_bar, above = law.sf(least[0] - 1), law.cdf(least[1] - 1)
    return float(law.pmf(errors) @ at_bar), float(law.pmf(errors) @ above)


def test_a_correct_build_fails_less_than_once_in_a_hundred_thousand_runs() -> None:
    assert sum(chances(4, TRIALS, BAR)) < 1e-5
    too_few, above = chances(3, TRIALS, BAR)
    assert 1 - too_few < 1e-5  # and a build in which one device is not seen passes as seldom
    assert above < 1e-5
    # with 1,200 runs and a bar of one half it was once in a hundred
    assert 0.01 < sum(chances(4, 1200, 0.5)) < 0.011
