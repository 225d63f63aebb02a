"""The per-record counters against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plans import asked

from dpzv.errors import PrivacyRefused
from dpzv.privacy.caps import CapCounters
from dpzv.privacy.events import PlannedRelease
from dpzv.privacy.planning import make_plan
from dpzv.rng import numpy_generator

D, B = 23, 5


@settings(max_examples=60, deadline=None)
@given(
    cap=st.floats(1e-6, 10),
    costs=st.lists(st.floats(0.02, 0.9), min_size=1, max_size=60),
    seed=st.integers(0, 1000),
)
def test_no_record_ever_passes_its_cap(cap: float, costs: list[float], seed: int) -> None:
    """Against exact rational sums of the very same float64 costs."""
    counters = CapCounters(D=D, cap=cap)
    truth = [Fraction(0)] * D
    draw = numpy_generator("batches", seed)
    for cost in costs:
        event = PlannedRelease(t=0, m=0, position=0, B=B, C=1.0, sigma_dp=1 / (B * math.sqrt(cost * cap)))
        ids = draw.permutation(D)[:B]
        able = counters.can_pay(ids, counters.charge_of(event))
        counters.add(ids, counters.charge_of(event))
        exact = Fraction(event.C) ** 2 / (B * Fraction(event.sigma_dp)) ** 2
        for i, can_pay in zip(ids, able, strict=True):
            if can_pay:
                truth[i] += exact
            else:
                assert truth[i] + exact > Fraction(cap) * (1 - Fraction(1, 10**12))
        assert max(truth) <= cap
        assert max(truth) <= counters.largest <= min(float(max(truth)) * (1 + 1e-12), cap * (1 + 1e-12))


@settings(max_examples=100, deadline=None)
@given(P=st.integers(1, 10_000), epsilon=st.floats(0.05, 20))
def test_exactly_the_planned_participations_fit(P: int, epsilon: float) -> None:
    """The last planned participation is not lost to rounding, the one after it is past the cap."""
    request = asked(
        epsilon=epsilon,
        B=B,
        D=D,
        T=P,
        participations=P,
        starts=("dp-pca",),
        start_share=0.2,
    )
    plan = make_plan(request)
    event = PlannedRelease(t=0, m=0, position=0, B=B, C=plan.C, sigma_dp=plan.sigma_dp)
    charge = CapCounters(D=D, cap=plan.cap).charge_of(event)
    assert P * charge <= 1 << 62 < (P + 1) * charge


@pytest.mark.parametrize(("cap", "sigma_dp"), [(1.0, 0.0), (1.0, 0.1999), (0.0, 1.0)])
def test_a_release_dearer_than_the_cap_is_refused(cap: float, sigma_dp: float) -> None:
    event = PlannedRelease(t=0, m=0, position=0, B=B, C=1.0, sigma_dp=sigma_dp)
    with pytest.raises(PrivacyRefused, match="alone pass the cap"):
        CapCounters(D=D, cap=cap).charge_of(event)


def test_no_cap_keeps_nothing() -> None:
    counters = CapCounters(D=D, cap=math.inf)
    charge = counters.charge_of(PlannedRelease(t=0, m=0, position=0, B=B, C=1.0, sigma_dp=0.0))
    for _ in range(3):
        counters.add(np.arange(B), charge)
    assert counters.can_pay(np.arange(B), charge).all()
    assert counters.largest == 0


@pytest.mark.parametrize("draws", [2, 3, 4, 5, 8])
def test_a_block_that_draws_a_record_too_often_is_refused_however_often(draws: int) -> None:
    """Four times the whole cap is 0 in 64 bits."""
    counters = CapCounters(D=D, cap=1.0)
    with pytest.raises(PrivacyRefused, match="would pass their cap"):
        counters.add_all([np.array([0])] * draws, 1 << 62)
    assert counters.largest == 0
    counters.add_all([np.array([0])], 1 << 62)
    assert counters.room == 0
