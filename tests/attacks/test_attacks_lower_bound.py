"""The bound: true for what is claimed, close to it, and above it where less noise was added."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from tests.plans import cost_of

from dpzv.attacks.lower_bound import (
    MOST_FACTOR,
    Evidence,
    at_factor,
    epsilon_bound,
    error_bounds,
    mu_bound,
    noise_factor,
    plain_bound,
)
from dpzv.privacy.accountant import Composition, tpr_of_parts
from dpzv.privacy.events import SampledGaussian
from dpzv.privacy.gdp import epsilon_of, tpr_at_fpr

DELTA = 1e-5
HEAD = cost_of(heads=(SampledGaussian(q=0.1, z=1.5, steps=4),))


def gaussian(mu: float) -> Composition:
    """Releases whose joint mu is `mu` when a record is replaced."""
    return cost_of(releases=(mu / 2) ** 2)


def seen(mu: float, n: int, claimed: float, seed: int) -> Evidence:
    """Scores of `n` runs per world of a mechanism whose mu is `mu` where `claimed` is promised."""
    generator = np.random.default_rng(seed)
    low, high = generator.normal(-mu / 2, 1, n), generator.normal(mu / 2, 1, n)
    return Evidence(low, high, 0.0, gaussian(claimed), DELTA, epsilon_of(claimed, DELTA))


@given(st.integers(0, 60), st.integers(0, 60), st.floats(1e-9, 0.1))
def test_error_bounds_are_those_of_clopper_and_pearson(wrong_low: int, wrong_high: int, alpha: float) -> None:
    low = np.where(np.arange(60) < wrong_low, 1.0, -1.0)
    high = np.where(np.arange(60) < wrong_high, -1.0, 1.0)
    found = error_bounds(Evidence(low, high, 0.0, gaussian(1.0), DELTA, 1.0), alpha)
    for errors, bound in zip((wrong_low, wrong_high), found, strict=True):
        # one-sided at alpha/2 is the upper end of a two-sided interval at alpha
        assert bound == pytest.approx(binomtest(errors, 60).proportion_ci(1 - alpha, "exact").high, rel=1e-6)


def test_a_score_at_the_threshold_says_low() -> None:
    zeros = np.zeros(100)
    fpr, fnr = error_bounds(Evidence(zeros, zeros, 0.0, gaussian(1.0), DELTA, 1.0), 1e-4)
    assert (fpr < 0.1, fnr) == (True, 1.0)


@given(st.floats(0.01, 6), st.floats(1e-4, 1 - 1e-4))
def test_mu_bound_inverts_the_curve(mu: float, fpr: float) -> None:
    fnr = 1 - tpr_at_fpr(mu, fpr)
    if fnr > 1e-9:
        assert mu_bound(fpr, fnr) == pytest.approx(mu, rel=1e-5)


def test_nothing_is_shown_by_errors_as_large_as_guessing() -> None:
    for cost in (gaussian(1.0), HEAD):
        assert noise_factor(cost, 0.5, 0.5) == 0
        assert noise_factor(cost, 1.0, 0.3) == 0


@pytest.mark.parametrize(("true_factor", "fpr"), [(0.5, 0.2), (1.0, 0.01), (3.0, 0.2)])
def test_the_factor_of_a_sampled_head_is_found_from_below(true_factor: float, fpr: float) -> None:
    """The best test against a head with less noise than claimed gives back how much less."""
    fnr = 1 - tpr_of_parts(at_factor(HEAD, true_factor), fpr)
    assert 0.98 * true_factor <= noise_factor(HEAD, fpr, fnr) <= true_factor * (1 + 1e-6)


def test_errors_that_no_noise_explains_give_the_largest_factor() -> None:
    """A record that is drawn in a tenth of the steps cannot be seen in nearly every run."""
    assert noise_factor(HEAD, 0.01, 0.01) == MOST_FACTOR


def test_the_bound_holds_as_often_as_it_says() -> None:
    """At alpha = 0.1 at most 10 % of bounds pass the truth: 400 audits, rejected above 15 % (p < 1e-3)."""
    mu, alpha = 0.8, 0.1
    over = sum(epsilon_bound(seen(mu, 500, mu, seed), alpha)[1] > 1 for seed in range(400))
    assert over <= 60
    # and the bound is no empty one: it is past the truth now and then
    assert over >= 1


@pytest.mark.parametrize("seed", range(5))
def test_less_noise_than_claimed_is_shown(seed: int) -> None:
    claim = epsilon_of(1.0, DELTA)
    correct, factor = epsilon_bound(seen(1.0, 20_000, 1.0, seed), 1e-5)
    assert 0.85 <= factor <= 1
    assert 0.8 * claim <= correct <= claim
    assert epsilon_bound(seen(1.2, 20_000, 1.0, seed), 1e-5)[0] > claim


def test_the_bound_in_words_of_the_log_ratio() -> None:
    """No bound through the curve is above what a perfect attack of this many runs could show."""
    n, alpha = 300, 1e-5
    perfect = Evidence(np.full(n, -1.0), np.full(n, 1.0), 0.0, gaussian(1.0), DELTA, 1.0)
    error = 1 - (alpha / 2) ** (1 / n)
    epsilon, factor = epsilon_bound(perfect, alpha)
    assert factor == pytest.approx(2 * norm.isf(error))
    assert epsilon == pytest.approx(epsilon_of(factor, DELTA))
    assert epsilon > math.log((1 - error - DELTA) / error)


def test_the_plain_bound_is_what_the_errors_say_without_a_curve() -> None:
    """The log-ratio of the bounds of both rates, in whichever order says more; below that of the true curve."""
    n, alpha = 300, 1e-5
    perfect = Evidence(np.full(n, -1.0), np.full(n, 1.0), 0.0, gaussian(1.0), DELTA, 1.0)
    error = 1 - (alpha / 2) ** (1 / n)
    assert plain_bound(perfect, alpha) == pytest.approx(math.log((1 - error - DELTA) / error))
    blind = Evidence(np.full(n, 1.0), np.full(n, 1.0), 0.0, gaussian(1.0), DELTA, 1.0)
    assert plain_bound(blind, alpha) == 0
    few = Evidence(np.full(n, -1.0), np.repeat([1.0, -1.0], [n // 10, n - n // 10]), 0.0, gaussian(1.0), DELTA, 1.0)
    mirrored = Evidence(-few.high, -few.low, -1e-9, gaussian(1.0), DELTA, 1.0)
    assert plain_bound(few, alpha) == pytest.approx(plain_bound(mirrored, alpha))
    assert plain_bound(few, alpha) > 0
    for seed in range(5):
        evidence = seen(1.0, 20_000, 1.0, seed)
        assert 0 < plain_bound(evidence, alpha) < epsilon_bound(evidence, alpha)[0]


def test_the_plain_bound_needs_no_claimed_curve_to_hold() -> None:
    """Randomised response at epsilon 1 is far from any Gaussian; the bound passes the truth as seldom as it says."""
    epsilon, alpha, n = 1.0, 0.1, 500
    lie = 1 / (1 + math.exp(epsilon))
    over = 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        low, high = generator.random(n) < lie, generator.random(n) >= lie
        evidence = Evidence(low.astype(float), high.astype(float), 0.5, gaussian(0.1), DELTA, 1.0)
        over += plain_bound(evidence, alpha) > epsilon
    assert over <= 60
