"""The account of everything together: against closed forms, 50 digits, and privacy loss rounded the other way."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import mpmath
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plans import asked, cost_of

from dpzv.errors import ConfigError
from dpzv.privacy import accountant, gdp
from dpzv.privacy.accountant import (
    Composition,
    compose,
    delta_of_parts,
    epsilon_of_parts,
    gaussian_mu,
    lattice_delta,
    tpr_of_parts,
)
from dpzv.privacy.events import LATTICE_DISTANCE, SampledGaussian
from dpzv.privacy.plan import PlanRequest
from dpzv.privacy.planning import make_plan
from dpzv.rng import numpy_generator
from dpzv.sensitivity import clip_factor
from dpzv.terms import Neighbours

BOTH: tuple[Neighbours, Neighbours] = ("replace-one", "zero-out")
HEAD = SampledGaussian(q=2048 / 60_000, z=4.138322, steps=1000)


def advantage(parts: Composition) -> float:
    """The largest true-positive minus false-positive rate of any test of one record."""
    return delta_of_parts(parts, 0.0, "replace-one")


def truth(epsilon: float, mu: float) -> mpmath.mpf:
    """delta of mu-GDP in 50 digits."""
    with mpmath.workdps(50):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

        def upper(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return upper(e / m - m / 2) - mpmath.exp(e) * upper(e / m + m / 2)


def optimistic(parts: Composition, neighbours: Neighbours, interval: float) -> Any:
    """Privacy loss rounded down at every step: what it says is never above the truth."""
    relation = {"replace-one": NeighboringRelation.REPLACE_ONE, "zero-out": NeighboringRelation.REPLACE_SPECIAL}

    def gaussian(sigma: float, q: float) -> Any:
        return privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            pessimistic_estimate=False,
            use_connect_dots=False,
            value_discretization_interval=interval,
            sampling_prob=q,
            neighboring_relation=relation[neighbours],
        )

    s = clip_factor(neighbours)
    mu_1 = gaussian_mu(parts, neighbours) / s
    found = gaussian(1 / mu_1, 1.0) if mu_1 else None
    for head in parts.sampled:
        steps = gaussian(head.z, head.q).self_compose(head.steps)
        found = steps if found is None else found.compose(steps)
    return found


# --- without a sampled head -----------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.03, 0.268051123211, 2.0])
@pytest.mark.parametrize("delta_dp", [1e-3, 1e-6])
def test_privacy_loss_closed_form_and_fifty_digits_agree(mu: float, delta_dp: float) -> None:
    """To 1e-6, none below the truth; the closed form is what is reported."""
    for neighbours in BOTH:
        s = clip_factor(neighbours)
        parts = cost_of(releases=(mu / s) ** 2)
        reported = epsilon_of_parts(parts, delta_dp, neighbours)
        loss = accountant._accountant(parts, neighbours).get_epsilon(delta_dp)
        for epsilon in (reported, loss):
            assert truth(epsilon, mu) <= delta_dp
            assert truth(epsilon * (1 - 1e-6), mu) > delta_dp


def test_starts_move_by_the_root_of_two() -> None:
    """Beside a head too weak to matter, a start costs what its closed form says under both neighbours."""
    weak = cost_of(heads=(SampledGaussian(q=1e-3, z=1e3, steps=1),))
    for neighbours, factor in (("replace-one", math.sqrt(2)), ("zero-out", 1.0)):
        alone = gdp.epsilon_of(factor * 0.3, 1e-5)
        found = epsilon_of_parts(compose(weak, cost_of(starts=0.09)), 1e-5, neighbours)  # type: ignore[arg-type]
        assert alone * (1 - 1e-9) <= found <= alone * (1 + 1e-5)


def test_a_head_over_all_records_is_a_gaussian_part() -> None:
    parts = cost_of(releases=0.04, heads=(SampledGaussian(q=1.0, z=20.0, steps=36),))
    assert epsilon_of_parts(parts, 1e-5, "zero-out") == gdp.epsilon_of(math.sqrt(0.04 + 36 / 400), 1e-5)
    assert epsilon_of_parts(parts, 1e-5, "replace-one") == gdp.epsilon_of(2 * math.sqrt(0.04 + 36 / 400), 1e-5)


def test_composition_adds_up() -> None:
    a = cost_of(releases=1.0, starts=0.5, heads=(SampledGaussian(q=0.1, z=2.0, steps=3),), lattice=1e-20)
    b = cost_of(releases=2.0, heads=(SampledGaussian(q=0.1, z=2.0, steps=4), SampledGaussian(q=0.2, z=2.0, steps=1)))
    both = compose(a, b)
    assert {pair.replaced: pair.square for pair in both.gaussian} == {2.0: 3.0, math.sqrt(2): 0.5}
    assert both.lattice == 1e-20
    assert both.sampled == (SampledGaussian(q=0.1, z=2.0, steps=7), SampledGaussian(q=0.2, z=2.0, steps=1))
    assert compose() == Composition()


# --- with one -------------------------------------------------------------------------------------


def test_reference_figure_of_a_sampled_head() -> None:
    parts = cost_of(heads=(HEAD,))
    assert f"{epsilon_of_parts(parts, 1e-5, 'replace-one'):.6g}" == "2.08844"
    assert epsilon_of_parts(parts, 1e-5, "zero-out") == pytest.approx(1.0, abs=5e-5)
    assert epsilon_of_parts(parts, 1e-5, "zero-out") >= 1.0 - 1e-6


def random_request(i: int) -> PlanRequest:
    draw = numpy_generator("plans", i)
    D = int(10 ** draw.uniform(3, 5.3))
    T = int(draw.integers(1, 2000))
    return asked(
        epsilon=float(10 ** draw.uniform(-0.7, 0.9)),
        delta_dp=float(10 ** draw.uniform(-6, -4)),
        neighbours=BOTH[i % 2],
        C=float(draw.uniform(0.1, 5)),
        B=int(draw.integers(64, min(D, 5000))),
        D=D,
        M=2,
        T=T,
        participations=int(draw.integers(1, T + 1)),
        min_batch=64,
        head_rule="dp-sgd",
        starts=("random", "dp-pca") if draw.random() < 0.5 else ("random", "random"),
        start_share=0.1,
        head_batch=int(D * 10 ** draw.uniform(-2, -0.3)),
        head_steps=int(10 ** draw.uniform(0.5, 2.3)),
        head_share=float(draw.uniform(0.1, 0.85)),
    )


def check_random_plan(i: int) -> None:
    plan = make_plan(random_request(i))
    assert plan.claimed_epsilon == plan.epsilon
    for neighbours, reported in (("replace-one", plan.epsilon_replace_one), ("zero-out", plan.epsilon_zero_out)):
        # rounding down loses up to one interval a step
        interval = 0.012 * reported / (plan.head_steps + 1)
        below = optimistic(plan.cost, neighbours, interval).get_epsilon_for_delta(plan.delta_dp)  # type: ignore[arg-type]
        assert below <= reported <= 1.01 * below, (i, neighbours, below, reported)


@pytest.mark.parametrize("i", [0, 5, 8, 10, 12, 23])  # those that are quickly calibrated
def test_random_plans_lie_within_a_percent_of_the_optimistic_figure(i: int) -> None:
    check_random_plan(i)


@pytest.mark.soak
@pytest.mark.parametrize("i", range(200))
def test_many_random_plans_lie_within_a_percent_of_the_optimistic_figure(i: int) -> None:
    check_random_plan(i)


def test_risk_lies_just_above_the_optimistic_curve() -> None:
    parts = cost_of(releases=0.02, heads=(SampledGaussian(q=0.1, z=4.0, steps=20),))
    below = optimistic(parts, "replace-one", 1e-4)
    floor = below.get_delta_for_epsilon(0.0)
    assert floor <= advantage(parts) <= 1.01 * floor
    for fpr in (0.01, 0.001):
        grid = [k * -math.log(fpr) / 400 for k in range(400)]
        curve = below.get_delta_for_epsilon(grid)
        floor = min(delta + math.exp(epsilon) * fpr for epsilon, delta in zip(grid, curve, strict=True))
        assert floor * (1 - 1e-4) <= tpr_of_parts(parts, fpr) <= 1.01 * floor


def test_risk_without_a_sampled_head_is_the_closed_form() -> None:
    parts = cost_of(releases=0.25, starts=0.5)
    mu = math.sqrt(4 * 0.25 + 2 * 0.5)
    assert advantage(parts) == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-12)
    assert tpr_of_parts(parts, 0.01) == pytest.approx(gdp.tpr_at_fpr(mu, 0.01), rel=1e-12)


def test_delta_and_epsilon_are_inverse_and_rounded_up() -> None:
    parts = cost_of(releases=0.01, heads=(SampledGaussian(q=0.05, z=3.0, steps=100),))
    for neighbours in BOTH:
        epsilon = epsilon_of_parts(parts, 1e-5, neighbours)
        assert delta_of_parts(parts, epsilon, neighbours) == pytest.approx(1e-5, rel=1e-6)
        assert delta_of_parts(parts, 0.9 * epsilon, neighbours) > 1e-5


def test_rounding_of_many_steps_is_allowed_for() -> None:
    """A head with q = 1 through the transforms, whose truth is known: with the allowance never below it."""
    for steps, z, interval in ((1000, 60.0, 3e-4), (100_000, 150.0, 2e-4)):
        relation = NeighboringRelation.REPLACE_ONE
        pld = privacy_loss_distribution.from_gaussian_mechanism(
            z, value_discretization_interval=interval, neighboring_relation=relation
        ).self_compose(steps)
        allowance = accountant._rounding(cost_of(heads=(SampledGaussian(q=1.0, z=z, steps=steps),)))
        mu = 2 * math.sqrt(steps) / z
        for delta_dp in (1e-5, 1e-9):
            assert truth(pld.get_epsilon_for_delta(delta_dp - allowance), mu) <= delta_dp


@settings(max_examples=2, deadline=None)
@given(q=st.floats(0.01, 0.3), z=st.floats(1.5, 30), steps=st.integers(1, 60), more=st.floats(1.05, 2))
def test_epsilon_grows_with_everything_that_is_spent(q: float, z: float, steps: int, more: float) -> None:
    def epsilon(q: float, z: float, steps: int, releases: float) -> float:
        head = SampledGaussian(q=q, z=z, steps=steps)
        return epsilon_of_parts(cost_of(releases=releases, heads=(head,)), 1e-6, "replace-one")

    base = epsilon(q, z, steps, 0.01)
    assert epsilon(q, z, steps, 0.01 * more) > base
    assert epsilon(q, z / more, steps, 0.01) > base
    assert epsilon(q, z, 2 * steps, 0.01) > base
    assert base >= gdp.epsilon_of(0.2, 1e-6)


# --- noise on integers ----------------------------------------------------------------------------


@pytest.mark.parametrize("s", [2, 4, 8])
def test_discrete_and_rounded_gaussian_are_as_near_as_said(s: int) -> None:
    with mpmath.workdps(30):
        scale = mpmath.mpf(s)
        ks = range(-14 * s, 14 * s + 1)
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * scale**2)) for k in ks]
        total = mpmath.fsum(weights)
        half = mpmath.mpf(1) / 2
        rounded = [mpmath.ncdf((k + half) / scale) - mpmath.ncdf((k - half) / scale) for k in ks]
        distance = mpmath.fsum(abs(w / total - r) for w, r in zip(weights, rounded, strict=True)) / 2
    assert distance <= LATTICE_DISTANCE / s**2
    assert distance >= 0.93 * LATTICE_DISTANCE / s**2


def test_the_lattice_is_paid_for_out_of_delta() -> None:
    plain = cost_of(releases=0.01)
    epsilon = epsilon_of_parts(plain, 1e-5, "zero-out")
    for lattice, share in ((1e-20, 1e-10), (1e-11, 1e-4), (1e-6, 0.5)):
        parts = cost_of(releases=0.01, lattice=lattice)
        found = epsilon_of_parts(parts, 1e-5, "zero-out")
        assert found == gdp.epsilon_of(0.1, 1e-5 * (1 - share)) > epsilon
        assert delta_of_parts(parts, found, "zero-out") <= 1e-5 * (1 + 1e-12)
        assert delta_of_parts(parts, found, "zero-out") > delta_of_parts(plain, found, "zero-out")
    coarse = cost_of(releases=0.01, lattice=1e-5)
    assert epsilon_of_parts(coarse, 1e-5, "zero-out") == gdp.zcdp_epsilon_of(0.1, 1e-5) > epsilon
    assert epsilon_of_parts(compose(coarse, cost_of(heads=(HEAD,))), 1e-5, "zero-out") == math.inf
    assert lattice_delta(1e-20, 800.0) == math.inf


# --- ends of the range ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        cost_of(releases=math.inf),
        cost_of(heads=(SampledGaussian(q=0.1, z=0.0, steps=1),)),
        cost_of(heads=(SampledGaussian(q=1.0, z=0.0, steps=1),)),
    ],
)
def test_without_noise_there_is_no_bound(parts: Composition) -> None:
    assert epsilon_of_parts(parts, 1e-5, "zero-out") == math.inf
    assert delta_of_parts(parts, 1.0, "zero-out") == 1
    assert tpr_of_parts(parts, 0.01) == advantage(parts) == 1


def test_nothing_costs_nothing() -> None:
    assert epsilon_of_parts(Composition(), 1e-5, "replace-one") == 0
    assert advantage(Composition()) == 0
    with pytest.raises(ConfigError):
        epsilon_of_parts(Composition(), 0.0, "replace-one")


def test_a_delta_below_the_rounding_has_no_epsilon() -> None:
    assert epsilon_of_parts(cost_of(heads=(HEAD,)), 1e-13, "replace-one") == math.inf


def test_the_heavy_accountant_is_loaded_for_sampled_heads_only() -> None:
    code = (
        "import sys; from dpzv.privacy.accountant import *; from dpzv.privacy.events import Releases; "
        "epsilon_of_parts(fold([Releases(cap=0.1, distance=0.0)]), 1e-5, 'replace-one'); print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()).isdisjoint({"dp_accounting", "opendp", "torch"})
