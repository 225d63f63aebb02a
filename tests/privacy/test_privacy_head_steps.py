"""Calibration: what is found keeps the budget, and hardly more noise than needed is found."""

from __future__ import annotations

import math

import pytest
from tests.plans import cost_of

from dpzv.errors import PrivacyRefused
from dpzv.privacy.accountant import Composition, compose, epsilon_of_parts, mu_left
from dpzv.privacy.events import SampledGaussian
from dpzv.privacy.gdp import mu_of
from dpzv.privacy.head_steps import LEAST_Z, head_noise
from dpzv.terms import Neighbours


@pytest.mark.parametrize(
    ("neighbours", "epsilon", "share", "q", "steps"),
    [("replace-one", 1.0, 0.5, 8192 / 60_000, 400), ("zero-out", 5.0, 0.9, 0.1, 50), ("zero-out", 0.3, 0.1, 0.3, 7)],
)
def test_a_head_keeps_the_budget_and_uses_it(
    neighbours: Neighbours, epsilon: float, share: float, q: float, steps: int
) -> None:
    s = 2 if neighbours == "replace-one" else 1
    rest = cost_of(releases=(1 - share) * mu_of(epsilon, 1e-5) ** 2 / s**2)
    z = head_noise(rest, q=q, steps=steps, epsilon=epsilon, delta_dp=1e-5, neighbours=neighbours)
    whole = compose(rest, cost_of(heads=(SampledGaussian(q=q, z=z, steps=steps),)))
    assert epsilon * (1 - 2e-4) <= epsilon_of_parts(whole, 1e-5, neighbours) <= epsilon


def test_the_reference_head_is_found_again() -> None:
    z = head_noise(Composition(), q=2048 / 60_000, steps=1000, epsilon=1.0, delta_dp=1e-5, neighbours="zero-out")
    assert z == pytest.approx(4.138322, rel=3e-4)


def test_a_head_that_hardly_ever_samples_keeps_the_least_noise() -> None:
    """With q * steps below delta_dp even no noise would keep the budget; that is not what is wanted."""
    z = head_noise(Composition(), q=1e-7, steps=10, epsilon=1.0, delta_dp=1e-5, neighbours="replace-one")
    assert z == pytest.approx(LEAST_Z)


def test_a_head_over_all_records_has_the_closed_form() -> None:
    z = head_noise(Composition(), q=1.0, steps=25, epsilon=1.0, delta_dp=1e-5, neighbours="replace-one")
    assert z == pytest.approx(2 * 5 / mu_of(1.0, 1e-5), rel=1e-4)
    assert 2 * 5 / z <= mu_of(1.0, 1e-5)


def test_what_earlier_runs_leave() -> None:
    whole = mu_of(2.0, 1e-5)
    assert mu_left(Composition(), 2.0, 1e-5, "zero-out") == pytest.approx(whole, rel=1e-9)
    gaussian = cost_of(releases=0.1, starts=0.2)
    expected = math.sqrt(whole**2 - 4 * 0.1 / 4 - 2 * 0.2 / 4)
    found = mu_left(cost_of(releases=0.025, starts=0.05), 2.0, 1e-5, "replace-one")
    assert found == pytest.approx(expected, rel=1e-9)
    assert mu_left(gaussian, 2.0, 1e-5, "replace-one") == 0


def test_what_an_earlier_sampled_head_leaves() -> None:
    neighbours: Neighbours = "replace-one"
    spent = cost_of(releases=0.002, heads=(SampledGaussian(q=0.1, z=15.0, steps=50),))
    left = mu_left(spent, 1.0, 1e-5, neighbours)
    both = compose(spent, cost_of(releases=(left / 2) ** 2))
    assert 1 - 2e-4 <= epsilon_of_parts(both, 1e-5, neighbours) <= 1.0
    loud = cost_of(heads=(SampledGaussian(q=0.1, z=1.0, steps=50),))
    assert mu_left(loud, 1.0, 1e-5, neighbours) == 0


def test_nothing_left_for_a_head_is_refused() -> None:
    rest = cost_of(releases=mu_of(1.0, 1e-5) ** 2)
    with pytest.raises(PrivacyRefused, match="leaves nothing"):
        head_noise(rest, q=0.1, steps=10, epsilon=1.0, delta_dp=1e-5, neighbours="zero-out")
