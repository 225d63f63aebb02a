"""The plan: calibration against the formulas it stands for, participation by brute force, every refusal."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plans import asked, earlier

from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy import planning
from dpzv.privacy.accountant import LATTICE_SHARES, Composition, epsilon_of_parts, fold, gaussian_mu
from dpzv.privacy.events import PlannedRelease, SampledGaussian, unit_mu, unpacked
from dpzv.privacy.gdp import delta_of, epsilon_of, mu_of, zcdp_epsilon_of, zcdp_mu_of
from dpzv.privacy.head_steps import HeadSteps, head_noise
from dpzv.privacy.plan import (
    SUM_SLACK,
    ParentRun,
    PrivacyPlan,
    epsilon_spent,
    participation_cap,
    request_of,
    start_event,
)
from dpzv.privacy.planning import make_plan
from dpzv.privacy.statement import parts_of
from dpzv.privacy.wording import verdict
from dpzv.rng import numpy_generator
from dpzv.sensitivity import outer_product_factor

ASKED = asked(
    C=0.5,
    B=200,
    D=10_000,
    M=3,
    T=600,
    participations=12,
    min_batch=64,
    head_rule="joint-zo",
    starts=("random", "gabor", "weights"),
    start_share=0.2,
)


PARENT = ParentRun(run_id="ab" * 16, noise_source="exact", events=earlier(releases=0.002, starts=0.003))


def plan_of(**changes: Any) -> PrivacyPlan:
    return make_plan(msgspec.structs.replace(ASKED, **changes))


# --- the noise ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    epsilon=st.floats(0.01, 50),
    delta_dp=st.floats(1e-9, 1e-3),
    C=st.floats(0.01, 100),
    B=st.integers(64, 10_000),
    P=st.integers(1, 100_000),
    s_and_name=st.sampled_from([(1, "zero-out"), (2, "replace-one")]),
)
def test_sigma_is_the_formula_and_the_claim_holds(
    epsilon: float, delta_dp: float, C: float, B: int, P: int, s_and_name: tuple[int, str]
) -> None:
    s, name = s_and_name
    plan = plan_of(epsilon=epsilon, delta_dp=delta_dp, C=C, B=B, participations=P, neighbours=name)
    formula = s * C * math.sqrt(P) / (B * mu_of(epsilon, delta_dp))
    # noise on integers takes its part of delta_dp, hardly anything unless e^epsilon is astronomical
    assert formula <= plan.sigma_dp <= formula * (1 + 1e-9 if epsilon < 5 and delta_dp > 1e-7 else 1.1)
    # P releases at this noise fit under the cap, and the cap keeps what was asked
    event = PlannedRelease(t=0, m=0, position=0, B=B, C=C, sigma_dp=plan.sigma_dp)
    assert P * unit_mu(event) ** 2 <= plan.cap
    assert delta_of(epsilon, s * math.sqrt(plan.cap)) <= delta_dp
    assert plan.claimed_epsilon == epsilon


@settings(deadline=None)
@given(epsilon=st.floats(0.05, 20), more=st.floats(1.01, 4), P=st.integers(1, 1000))
def test_noise_falls_with_epsilon_and_grows_with_participations(epsilon: float, more: float, P: int) -> None:
    sigma = plan_of(epsilon=epsilon, participations=P).sigma_dp
    assert plan_of(epsilon=epsilon * more, participations=P).sigma_dp < sigma
    assert plan_of(epsilon=epsilon, participations=P + 1).sigma_dp > sigma
    assert plan_of(epsilon=epsilon, participations=P, delta_dp=1e-7).sigma_dp > sigma


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_several_directions_cost_what_one_number_with_the_euclidean_clip_costs(neighbours: Any) -> None:
    """The same noise and the same mu a message; only the distance of noise on integers counts every number."""
    K, wanted = 16, asked(C=0.5, T=40, participations=4, neighbours=neighbours)
    plan = make_plan(msgspec.structs.replace(wanted, directions=K))
    alone = make_plan(msgspec.structs.replace(wanted, C=0.5 * 4))
    assert plan.clip == alone.C == 2.0
    assert plan.sigma_dp == pytest.approx(alone.sigma_dp, rel=1e-9)
    events = [made.release(t=1, m=1, position=0, B=made.B) for made in (plan, alone)]
    assert unit_mu(events[0]) == pytest.approx(unit_mu(events[1]), rel=1e-9)
    assert events[0].C == 2.0
    distances = [made.events[0].lattice() for made in (plan, alone)]
    assert distances[0] == pytest.approx(K * distances[1], rel=1e-9)
    # K messages of one number with the same clip for each need the same noise
    single = make_plan(msgspec.structs.replace(wanted, T=K * 40, participations=K * 4))
    assert plan.sigma_dp == pytest.approx(single.sigma_dp, rel=1e-9)
    with pytest.raises(ConfigError, match=r"has one direction a message, got train\.directions=16"):
        make_plan(msgspec.structs.replace(wanted, directions=K, method="zoo-vfl"))


def test_both_epsilons_of_releases_alone() -> None:
    mu = mu_of(1.0, 1e-6)
    one, out = plan_of(), plan_of(neighbours="zero-out")
    assert one.epsilon_replace_one == 1.0
    assert one.epsilon_zero_out == pytest.approx(epsilon_of(mu / 2, 1e-6), rel=1e-9)
    assert out.epsilon_zero_out == 1.0
    assert out.epsilon_replace_one == pytest.approx(epsilon_of(2 * mu, 1e-6), rel=1e-9)
    assert one.sigma_dp == pytest.approx(2 * out.sigma_dp, rel=1e-9)


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_starts_and_releases_compose_to_the_budget(neighbours: Any) -> None:
    """All Gaussian parts, whitened, side by side are one Gaussian whose mean moves by the joint mu."""
    plan = plan_of(neighbours=neighbours, starts=("dp-pca", "random", "dp-pca"), start_share=0.3)
    events = [start_event(plan, m) for m in (0, 2)]
    for name, wanted in {
        "replace-one": plan.epsilon_replace_one,
        "zero-out": plan.epsilon_zero_out,
    }.items():
        s = {"replace-one": 2.0, "zero-out": 1.0}[name]
        r = {"replace-one": math.sqrt(2), "zero-out": 1.0}[name]
        shifts = [r / event.noise_multiplier for event in events]
        shifts += [s * plan.C / plan.B / plan.sigma_dp] * plan.participations
        mu = float(np.linalg.norm(shifts))
        claimed = gaussian_mu(plan.cost, name)
        # starts have a millionth more noise than the claim counts, for the rounding of their float64 sums
        assert claimed * (1 - 2e-6) < mu <= claimed
        assert wanted == pytest.approx(epsilon_of(claimed, plan.delta_dp), rel=1e-9)
    joint_start = math.hypot(*plan.mu_start)
    assert joint_start**2 == pytest.approx(0.3 * mu_of(1.0, 1e-6) ** 2, rel=1e-9)
    assert plan.mu_start[1] == 0


def test_replace_one_of_outer_products_is_at_most_sqrt2() -> None:
    """The bound the starts rely on, attained by orthogonal rows and not passed by random ones."""
    draws = numpy_generator("outer").standard_normal((500, 2, 4))
    draws /= np.linalg.norm(draws, axis=2, keepdims=True)
    moves = [np.linalg.norm(np.outer(v, v) - np.outer(w, w)) for v, w in draws]
    bound = outer_product_factor("replace-one")
    assert max(moves) <= bound
    assert max(moves) > 0.99 * bound


def test_published_rule_is_reproduced_and_called_no_guarantee() -> None:
    plan = plan_of(accounting="paper", head_rule="sgd", starts=("pca",) * 3, delta_dp=1e-3)
    assert plan.sigma_dp == pytest.approx(2 * 0.5 * math.sqrt(600) / (10_000 * 0.388401248307), rel=1e-9)
    assert plan.claimed_epsilon == plan.epsilon_replace_one == 1.0
    assert plan.epsilon_zero_out == pytest.approx(epsilon_of(plan.mu / 2, 1e-3), rel=1e-9)  # 2C is a replaced record
    assert plan.cap == math.inf
    for source in ("exact", "seeded"):
        guarantee, why = verdict(plan, source)  # type: ignore[arg-type]
        assert not guarantee
        assert "published" in why


def test_no_privacy_adds_no_noise_and_refuses_nothing() -> None:
    plan = plan_of(epsilon=math.inf, C=math.inf, head_rule="sgd", starts=("pca",) * 3, B=1)
    assert plan.sigma_dp == 0
    assert plan.claimed_epsilon == plan.epsilon_zero_out == plan.epsilon_replace_one == math.inf
    assert verdict(plan, "exact") == (False, "no privacy was asked for (epsilon is infinite)")
    assert start_event(plan_of(epsilon=math.inf, starts=("dp-pca",) * 3), 1).noise_multiplier == 0


def test_nothing_released_is_epsilon_zero() -> None:
    plan = plan_of(T=0, participations=0, starts=("dp-pca", "pca", "random"), head_rule="sgd")
    assert plan.claimed_epsilon == plan.epsilon_zero_out == plan.epsilon_replace_one == plan.mu == 0
    assert plan.mu_start[0] == plan_of(starts=("dp-pca", "gabor", "random")).mu_start[0] > 0
    assert verdict(plan, "exact")[0]


def test_verdict_needs_secret_noise() -> None:
    assert verdict(plan_of(), "exact")[0]
    guarantee, why = verdict(plan_of(), "seeded")
    assert not guarantee
    assert "simulated noise: what this plan would guarantee" in why


def test_spent_grows_to_the_claim() -> None:
    plan = plan_of(starts=("dp-pca", "random", "random"))
    spent = [epsilon_spent(plan, releases=k, unit_mu_squared=plan.cap * k / 600) for k in (0, 1, 300, 600)]
    assert spent[0] == 0
    assert spent[1] > 0.01  # the start is in it from the first release
    assert spent == sorted(spent)
    assert spent[3] == pytest.approx(1.0, rel=1e-9)
    published = plan_of(accounting="paper")
    half = epsilon_spent(published, releases=150, unit_mu_squared=0.0)
    assert half == pytest.approx(epsilon_of(published.mu / 2, 1e-6), rel=1e-9)
    assert epsilon_spent(plan_of(epsilon=math.inf), releases=1, unit_mu_squared=0.0) == math.inf


def test_warnings() -> None:
    assert plan_of().warnings == ()
    (warning,) = plan_of(delta_dp=1e-3).warnings
    assert "1/D" in warning
    (warning,) = plan_of(protects="labels", starts=("dp-pca",) * 3).warnings
    assert "start pca or whiten is free" in warning


@pytest.mark.parametrize("changes", [{}, {"epsilon": math.inf, "C": math.inf, "starts": ("dp-pca",) * 3}])
def test_json_round_trip_is_bit_exact(changes: dict[str, Any]) -> None:
    plan = plan_of(**changes)
    assert unpacked(msgspec.msgpack.encode(plan), PrivacyPlan) == plan
    assert make_plan(request_of(plan)) == plan


# --- the private head -----------------------------------------------------------------------------

WITH_HEAD: dict[str, Any] = {"head_rule": "dp-sgd", "head_batch": 1500, "head_steps": 16, "head_share": 0.4}


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_the_budget_is_split_between_starts_releases_and_head(neighbours: Any) -> None:
    plan = plan_of(**WITH_HEAD, neighbours=neighbours, starts=("dp-pca", "random", "dp-pca"), start_share=0.1)
    whole = mu_of(1.0, 1e-6) ** 2
    assert math.hypot(*plan.mu_start) ** 2 == pytest.approx(0.1 * whole, rel=1e-9)
    assert plan.mu**2 == pytest.approx(0.5 * whole, rel=1e-9)
    assert plan.mu_head**2 == pytest.approx(0.4 * whole, rel=1e-9)
    assert plan.q == 0.15
    # what is claimed is what everything costs together, hardly less
    assert 1 - 2e-4 <= epsilon_of_parts(plan.cost, 1e-6, neighbours) <= 1.0 == plan.claimed_epsilon
    assert plan.cost.sampled == (SampledGaussian(q=0.15, z=plan.z / (1 + SUM_SLACK), steps=16),)
    assert unpacked(msgspec.msgpack.encode(plan), PrivacyPlan) == plan
    names = {part.name: part for part in parts_of(plan)}
    assert list(names) == ["starts", "releases", "head"]
    assert names["releases"].epsilon == pytest.approx(epsilon_of(plan.mu, 1e-6), rel=1e-9)
    assert (names["head"].q, names["head"].z, names["head"].steps) == (0.15, plan.z, 16)
    assert max(part.epsilon for part in names.values()) < 1 < sum(part.epsilon for part in names.values())


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_the_head_has_more_noise_than_exact_sums_would_need(neighbours: Any) -> None:
    """Its sums are in float64: one record moves them by up to 5e-7 more than its clip, and z is larger by more."""
    head = {"head_rule": "dp-sgd", "head_batch": 10_000, "head_steps": 9, "neighbours": neighbours}
    plan = plan_of(**head, T=0, participations=0)
    share = LATTICE_SHARES[0]  # of delta_dp, set aside for noise on integers
    z = head_noise(Composition(), q=1.0, steps=9, epsilon=1.0, delta_dp=1e-6 * (1 - share), neighbours=neighbours)
    assert plan.z / z - 1 == pytest.approx(SUM_SLACK, rel=1e-6)
    assert SUM_SLACK > 5e-7


def test_a_smaller_share_means_more_noise_for_the_head() -> None:
    plans = [plan_of(**(WITH_HEAD | {"head_share": share})) for share in (0.2, 0.6)]
    assert plans[0].z > plans[1].z
    assert plans[0].sigma_dp < plans[1].sigma_dp


def test_a_head_without_rounds_has_the_budget_to_itself() -> None:
    plan = plan_of(**WITH_HEAD, T=0, participations=0)
    assert plan.sigma_dp == plan.mu == plan.cap == 0
    assert plan.claimed_epsilon == 1.0
    assert plan.z < plan_of(**WITH_HEAD).z
    assert verdict(plan, "exact")[0]
    assert [part.name for part in parts_of(plan)] == ["head"]
    nothing = plan_of(**(WITH_HEAD | {"head_steps": 0}), T=0, participations=0)
    assert nothing.claimed_epsilon == nothing.z == 0
    assert parts_of(nothing) == ()


def test_a_head_without_privacy_has_no_noise() -> None:
    plan = plan_of(**WITH_HEAD, epsilon=math.inf)
    assert plan.z == plan.sigma_dp == 0
    assert plan.epsilon_replace_one == plan.epsilon_zero_out == math.inf
    assert unpacked(msgspec.msgpack.encode(plan), PrivacyPlan) == plan


def test_what_the_head_rule_does_not_look_at_does_not_matter() -> None:
    assert plan_of(head_batch=7, head_steps=7, head_share=0.7) == plan_of()


def test_spent_with_a_head_is_right_at_both_ends_and_grows() -> None:
    plan = plan_of(**WITH_HEAD)

    def spent(releases: int, share: float, head_steps: int) -> float:
        return epsilon_spent(plan, releases=releases, unit_mu_squared=share * plan.cap, head_steps=head_steps)

    figures = [spent(0, 0, 0), spent(10, 0.1, 0), spent(10, 0.1, 5), spent(300, 0.5, 8), spent(600, 1.0, 16)]
    assert figures == sorted(figures)
    assert figures[0] == 0
    assert figures[-1] == pytest.approx(1.0, rel=1e-6)
    assert figures[-1] <= plan.claimed_epsilon


def test_noise_on_integers_is_part_of_the_claim() -> None:
    """The smallest allowed batch has the coarsest noise; T releases of it are set aside."""
    plan = plan_of()
    scale = 64 * plan.sigma_dp * 2**40 / plan.C
    assert plan.cost.lattice == pytest.approx(600 * 0.0202 / scale**2, rel=1e-9)
    assert 0 < plan.cost.lattice < 1e-15
    assert delta_of(1.0, gaussian_mu(plan.cost, "replace-one")) + (1 + math.e) * plan.cost.lattice <= 1e-6


def test_an_epsilon_beyond_the_lattice_is_concentrated_dp() -> None:
    """The same zCDP as the continuous noise: a finite figure, a little above that of mu-GDP."""
    plan = plan_of(epsilon=60.0)
    mu = gaussian_mu(plan.cost, "replace-one")
    assert zcdp_epsilon_of(mu, 1e-6) == pytest.approx(60.0, rel=1e-9)
    assert 0.94 * mu_of(60.0, 1e-6) < mu < mu_of(60.0, 1e-6)
    found = plan_of(epsilon=20.0, neighbours="zero-out").epsilon_replace_one
    assert epsilon_of(2 * mu_of(20.0, 1e-6), 1e-6) <= found < 1.1 * epsilon_of(2 * mu_of(20.0, 1e-6), 1e-6)


# --- earlier runs ---------------------------------------------------------------------------------


def test_a_run_gets_what_its_parents_leave() -> None:
    alone, plan = plan_of(), plan_of(parents=(PARENT,))
    spent = 4 * 0.002 + 2 * 0.003
    assert plan.mu**2 == pytest.approx(alone.mu**2 - spent, rel=1e-8)
    assert plan.mu_parents**2 == pytest.approx(spent, rel=1e-6)
    assert plan.sigma_dp > alone.sigma_dp
    assert epsilon_of_parts(plan.cost, 1e-6, "replace-one") == pytest.approx(1.0, rel=1e-8)
    assert plan.claimed_epsilon == 1.0
    assert unpacked(msgspec.msgpack.encode(plan), PrivacyPlan) == plan
    assert [part.name for part in parts_of(plan)] == ["releases", "earlier runs abababab"]
    before = epsilon_spent(plan, releases=0, unit_mu_squared=0.0)
    assert before == pytest.approx(epsilon_of(math.sqrt(spent), 1e-6), rel=1e-6)


def test_parents_and_a_head_share_one_budget() -> None:
    before = msgspec.structs.replace(PARENT, events=(HeadSteps(q=0.15, z=40.0, steps=50),))
    plan = plan_of(**WITH_HEAD, parents=(before,))
    assert {head.z for head in plan.cost.sampled} == {40.0 / (1 + SUM_SLACK), plan.z / (1 + SUM_SLACK)}
    assert 1 - 2e-4 <= epsilon_of_parts(plan.cost, 1e-6, "replace-one") <= 1.0
    assert plan.z > plan_of(**WITH_HEAD).z


def test_nothing_built_on_simulated_noise_is_a_guarantee() -> None:
    assert verdict(plan_of(parents=(PARENT,)), "exact")[0]
    simulated = msgspec.structs.replace(PARENT, noise_source="seeded")
    guarantee, why = verdict(plan_of(parents=(simulated,)), "exact")
    assert not guarantee
    assert "earlier run" in why


@pytest.mark.parametrize("q", [0.2, 1.0])
def test_a_head_is_charged_with_the_noise_that_the_account_assumed(q: float) -> None:
    """A record may move a float64 sum by a little more than the clip; the noise for that is not counted twice."""
    plan = plan_of(**WITH_HEAD | {"head_batch": int(q * ASKED.D)})
    (head,) = plan.cost.sampled
    assert head.z * (1 + 0.9 * SUM_SLACK) < plan.z
    parent = ParentRun(run_id="cd" * 16, noise_source="exact", events=plan.claim)
    assert fold(parent.charged(in_full=True)).sampled == plan.cost.sampled


def test_the_published_rule_says_that_it_leaves_earlier_runs_out() -> None:
    alone, plan = (plan_of(accounting="paper", parents=parents) for parents in ((), (PARENT,)))
    assert (plan.sigma_dp, plan.epsilon_zero_out) == (alone.sigma_dp, alone.epsilon_zero_out)
    assert not verdict(plan, "exact")[0]
    assert "leaves out the 1 named" in plan.warnings[-1]


@pytest.mark.parametrize("share", [0.98, 0.9902, 0.99999, 1.0, 4.0])
def test_parents_that_leave_next_to_nothing_are_refused_by_name(share: float) -> None:
    """One percent of the squared mu must be left, with which noise is ten times that of a run alone."""
    loud = msgspec.structs.replace(PARENT, events=earlier(releases=share * mu_of(1.0, 1e-6) ** 2 / 4))
    free = msgspec.structs.replace(PARENT, run_id="ef" * 16, shared=0)
    if share < 0.99:
        assert 5 < plan_of(parents=(loud, free)).sigma_dp / plan_of().sigma_dp < 10
        return
    with pytest.raises(PrivacyRefused, match="leave nothing of epsilon=1") as refused:
        plan_of(parents=(loud, free))
    cost = epsilon_of(math.sqrt(share) * mu_of(1.0, 1e-6), 1e-6)
    assert f"{PARENT.run_id[:8]} (epsilon {cost:.3g})" in str(refused.value)
    assert "efefefef" not in str(refused.value)
    assert "raise epsilon" in str(refused.value)


def test_what_a_search_for_a_heads_noise_leaves_is_no_budget() -> None:
    """A parent at the same epsilon leaves 1e-4 of the budget unused: noise would be a hundred times that alone."""
    parent = ParentRun(run_id="cd" * 16, noise_source="exact", events=plan_of(**WITH_HEAD).claim)
    with pytest.raises(PrivacyRefused, match="cdcdcdcd"):
        plan_of(parents=(parent,))
    assert plan_of(parents=(parent,), epsilon=1.5).sigma_dp < 10 * plan_of(epsilon=1.5).sigma_dp


def test_parents_that_spent_a_large_epsilon_are_named_too() -> None:
    """Above some 30 the noise follows from concentrated DP."""
    loud = msgspec.structs.replace(PARENT, events=earlier(releases=zcdp_mu_of(60.0, 1e-6) ** 2 / 4))
    assert plan_of(epsilon=60.0).sigma_dp > 0
    with pytest.raises(PrivacyRefused, match="leave nothing of epsilon=60"):
        plan_of(epsilon=60.0, parents=(loud,))


@pytest.mark.parametrize("changes", [{}, WITH_HEAD], ids=["releases", "head"])
def test_a_plan_whose_events_cost_more_than_its_epsilon_is_never_handed_out(changes: dict[str, Any]) -> None:
    """This guards against errors of a calibration: no request is known that would get this far."""
    plan = plan_of(**changes)
    cost = epsilon_of_parts(plan.cost, plan.delta_dp, plan.neighbours)
    assert planning._claimed(msgspec.structs.replace(plan, epsilon=cost)).epsilon_replace_one == cost
    with pytest.raises(AssertionError, match="gives"):
        planning._claimed(msgspec.structs.replace(plan, epsilon=math.nextafter(cost, 0)))


# --- participations -------------------------------------------------------------------------------


def walked(*, n: list[int], B: int, D: int) -> int:
    """Most participations of any record when device m really walks its cyclic schedule n[m] rounds.

    Permutations are chosen against us: each device's first record is the same one.
    """
    counts = np.zeros(D, dtype=int)
    for rounds in n:
        np.add.at(counts, np.arange(rounds * B) % D, 1)
    return int(counts.max())


@pytest.mark.parametrize("B", range(1, 8))
def test_participation_cap_by_brute_force(B: int) -> None:
    """Devices whose rounds differ by at most one: exactly what happens, whichever of them have one more."""
    for D, M, T in itertools.product(range(B, 10, 2), (1, 2, 3), range(13)):
        shares = {tuple(order) for order in itertools.permutations([T // M + (m < T % M) for m in range(M)])}
        for n in shares:
            assert participation_cap(T=T, B=B, D=D, M=M) == walked(n=list(n), B=B, D=D)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head_rule": "sgd"}, ["dp-sgd", "joint-zo", "frozen", "accounting=paper"]),
        ({"head_rule": "zo"}, ["joint-zo", "frozen", "accounting=paper"]),
        (
            {"starts": ("random", "pca", "random")},
            ["dp-pca", "random", "gabor", "weights", "protects=labels"],
        ),
        ({"protects": "labels", "neighbours": "zero-out"}, ["replace-one", "protects=records"]),
        ({"B": 63}, ["min_batch", "B=63"]),
        ({"C": math.inf}, ["C", "epsilon to inf"]),
        ({"C": math.inf, "accounting": "paper"}, ["C", "epsilon to inf"]),
        ({"head_rule": "dp-sgd", "head_batch": 9, "head_steps": 1, "accounting": "paper"}, ["sgd", "accounting=exact"]),
        ({"T": 0, "starts": ("pca",) * 3, "head_rule": "dp-sgd", "head_batch": 9, "head_steps": 1}, ["dp-pca"]),
        ({"epsilon": 60.0, "head_rule": "dp-sgd", "head_batch": 9, "head_steps": 1}, ["integers", "lower epsilon"]),
    ],
)
def test_uncovered_is_refused_with_the_choices(changes: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(PrivacyRefused) as refused:
        plan_of(**changes)
    for word in named:
        assert word in str(refused.value)


def test_pca_is_free_for_labels() -> None:
    plan = plan_of(protects="labels", starts=("pca",) * 3)
    assert plan.sigma_dp == plan_of().sigma_dp


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"delta_dp": 0.0},
        {"delta_dp": 1.0},
        {"C": 0.0},
        {"C": math.nan},
        {"B": 10_001},
        {"B": 0},
        {"M": 2},
        {"T": -1},
        {"participations": 0},
        {"starts": ("dp-pca",) * 3, "start_share": 0.0},
        {"starts": ("dp-pca",) * 3, "start_share": 1.0},
        {"starts": ("random", "random", "kaiming")},
        {"head_rule": "adam"},
        {"head_rule": "dp-sgd"},
        {"head_rule": "dp-sgd", "head_steps": 10},
        {"head_rule": "dp-sgd", "head_steps": 10, "head_batch": 10_001},
        {"head_rule": "dp-sgd", "head_steps": 10, "head_batch": 10, "head_share": 0.0},
        {"head_rule": "dp-sgd", "head_steps": 10, "head_batch": 10, "head_share": 1.0},
        {
            "head_rule": "dp-sgd",
            "head_steps": 10,
            "head_batch": 10,
            "head_share": 0.8,
            "starts": ("dp-pca",) * 3,
        },
        {"accounting": "rdp"},
        {"neighbours": "add-one"},
        {"protects": "features"},
    ],
)
def test_nonsense_is_a_config_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        plan_of(**changes)


def test_only_dp_pca_has_start_noise() -> None:
    with pytest.raises(ConfigError):
        start_event(plan_of(), 0)
