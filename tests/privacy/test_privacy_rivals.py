"""Plans and statements of the rivals: where their noise is, how much, and what may be said of it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.plans import asked, cost_of

from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.events import unit_mu, unpacked
from dpzv.privacy.gdp import mu_of
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.planning import make_plan
from dpzv.privacy.statement import RunSpent, statement

ASKED = asked(
    delta_dp=1e-5,
    protects="labels",
    C=0.5,
    B=100,
    D=6000,
    M=7,
    T=700,
    participations=14,
    min_batch=64,
    starts=("random",) * 7,
    C_h=2.0,
)
RIVALS = ("vafl", "zoo-vfl", "vfl-czofo")


def plan(**changes: Any) -> PrivacyPlan:
    return make_plan(msgspec.structs.replace(ASKED, **changes))


def told(made: PrivacyPlan) -> str:
    run = RunSpent(plan=made, noise_source="exact", releases=700, epsilon_spent=made.claimed_epsilon)
    return statement(run).text()


@pytest.mark.parametrize("where", ["uplink", "downlink"])
def test_a_batch_below_the_least_is_refused_before_a_run_begins(where: str) -> None:
    with pytest.raises(PrivacyRefused, match=r"min_batch=64 records, got B=32; raise B or lower min_batch"):
        plan(method="vafl", where=where, B=32, accounting="paper", head_rule="sgd")


def test_vafls_noise_has_no_mean_to_hide_behind() -> None:
    """sigma = 2 C sqrt(P) / mu per entry; the others' is B times smaller."""
    mu = mu_of(1.0, 1e-5)
    assert plan(method="vafl").sigma_dp == pytest.approx(2 * 0.5 * math.sqrt(14) / mu, rel=1e-9)
    for method in ("dpzv", "zoo-vfl", "vfl-czofo"):
        assert plan(method=method).sigma_dp == pytest.approx(2 * 0.5 * math.sqrt(14) / (100 * mu), rel=1e-9)


@pytest.mark.parametrize("method", RIVALS)
def test_noise_on_the_downlink_keeps_the_claim_at_its_participations(method: str) -> None:
    made = plan(method=method)
    event = made.release(t=1, m=1, position=0, B=100)
    mu = 2 * unit_mu(event) * math.sqrt(made.participations)
    assert mu <= made.mu * (1 + 1e-9)
    assert mu == pytest.approx(mu_of(1.0, 1e-5), rel=1e-6)
    text = told(made)
    assert "Guarantee:   yes" in text
    assert "one record's label at a time" in text


def test_the_published_rule_on_the_uplink() -> None:
    made = plan(method="vafl", where="uplink", accounting="paper", head_rule="sgd", delta_dp=1e-3)
    assert made.sigma_h == pytest.approx(100 / 6000 * 2 * 2.0 * math.sqrt(700) / mu_of(1.0, 1e-3), rel=1e-9)
    assert made.sigma_dp == 0
    text = told(made)
    assert "Guarantee:   no" in text
    assert "labels come back to the devices without noise" in text
    assert "Protected:   nothing" in text
    assert unpacked(msgspec.msgpack.encode(made), PrivacyPlan) == made


@pytest.mark.parametrize(("method", "arrays"), [("vafl", 1), ("zoo-vfl", 2), ("vfl-czofo", 1)])
def test_the_exact_account_of_the_uplink_claims_nothing_about_labels(method: str, arrays: int) -> None:
    made = plan(method=method, where="uplink", head_rule="sgd")
    assert made.sigma_h == pytest.approx(2 * 2.0 * math.sqrt(arrays * 14 + 7) / mu_of(1.0, 1e-5), rel=1e-9)
    assert made.claimed_epsilon == made.epsilon_replace_one == made.epsilon_zero_out == math.inf
    assert made.cost == cost_of(releases=math.inf)  # nothing may be built on it
    text = told(made)
    assert "Guarantee:   no" in text
    assert "none against devices" in text
    assert "Protected:   nothing" in text


@pytest.mark.parametrize("method", ["vafl", "vfl-czofo"])
def test_backpropagating_devices_are_refused_under_records(method: str) -> None:
    with pytest.raises(PrivacyRefused, match="raw features"):
        plan(method=method, protects="records")
    assert plan(method="zoo-vfl", protects="records").sigma_dp == plan(method="dpzv", protects="records").sigma_dp


def test_what_has_no_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="dpzv adds noise to answers only"):
        plan(where="uplink")
    for method in RIVALS:
        with pytest.raises(PrivacyRefused, match="published rule puts the noise"):
            plan(method=method, accounting="paper")
        with pytest.raises(ConfigError, match="joint-zo"):
            plan(method=method, head_rule="joint-zo")
        with pytest.raises(PrivacyRefused, match="C_h=inf"):
            plan(method=method, where="uplink", accounting="paper", C_h=math.inf)
        with pytest.raises(PrivacyRefused, match="private head protects nothing"):
            plan(method=method, where="uplink", head_rule="dp-sgd", head_batch=100, head_steps=10)
        with pytest.raises(PrivacyRefused, match="un-noised labels"):
            plan(method=method, head_rule="sgd")


def test_without_rounds_or_budget_a_rival_is_as_free_as_dpzv() -> None:
    assert plan(method="vafl", T=0, participations=0, where="uplink").claimed_epsilon == 0
    free = plan(method="vafl", epsilon=math.inf, C=math.inf, C_h=math.inf, head_rule="sgd", where="uplink")
    assert (free.sigma_dp, free.sigma_h) == (0, 0)
