"""The account against a second accountant, which composes without Fourier transforms and bounds delta on both sides."""

from __future__ import annotations

import pytest
from second_accountant import delta_bounds

from dpzv.privacy.accountant import Composition, _rounding, delta_of_parts
from dpzv.privacy.events import Gaussian, SampledGaussian
from dpzv.privacy.gdp import delta_of
from dpzv.sensitivity import clip_factor
from dpzv.terms import Neighbours

EPSILONS = [0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0]
Steps = tuple[tuple[float, float, int], ...]


def within_bounds(mu: float, steps: Steps, neighbours: Neighbours, interval: float) -> list[tuple[float, float]]:
    """The bounds at `EPSILONS`, once the account is found to lie between them."""
    square = (mu / clip_factor(neighbours)) ** 2
    parts = Composition(
        gaussian=(Gaussian(square=square, replaced=clip_factor("replace-one")),) if mu else (),
        sampled=tuple(SampledGaussian(q=q, z=z, steps=n) for q, z, n in steps),
    )
    bounds = delta_bounds(EPSILONS, mu=mu, steps=steps, neighbours=neighbours, interval=interval)
    for epsilon, (low, high) in zip(EPSILONS, bounds, strict=True):
        found = delta_of_parts(parts, epsilon, neighbours)
        # the account adds its margin for rounding, and rounding itself may add as much
        assert low <= found <= high + 2 * _rounding(parts), (epsilon, low, found, high)
    return bounds


def test_it_brackets_the_closed_form() -> None:
    bounds = delta_bounds(EPSILONS, mu=1.3, steps=(), neighbours="replace-one", interval=1e-3)
    for epsilon, (low, high) in zip(EPSILONS, bounds, strict=True):
        assert low <= delta_of(epsilon, 1.3) <= high <= 1.02 * low


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
@pytest.mark.parametrize(("mu", "steps"), [(0.0, ((0.3, 3.0, 24),)), (0.4, ((0.02, 0.8, 16), (0.2, 2.0, 8)))])
def test_the_account_lies_between_the_bounds(mu: float, steps: Steps, neighbours: Neighbours) -> None:
    bounds = within_bounds(mu, steps, neighbours, 2e-3)
    assert all(high < 2 * low for low, high in bounds if low > 1e-8)
    assert bounds[0][1] > 0.05
    assert bounds[-1][0] < 1e-14  # far below any delta_dp, where the rounding of transforms would show


@pytest.mark.soak
@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
@pytest.mark.parametrize(
    ("mu", "steps"), [(0.5, ((0.01, 1.0, 200),)), (0.2, ((0.001, 0.6, 400),)), (0.0, ((0.1, 2.0, 1000),))]
)
def test_the_account_lies_between_the_bounds_of_many_steps(mu: float, steps: Steps, neighbours: Neighbours) -> None:
    within_bounds(mu, steps, neighbours, 5e-4)
