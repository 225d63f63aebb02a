"""Making a plan: a budget and a training schedule in, the noise and the caps that make it true out."""

from __future__ import annotations

import math
from typing import get_args

from msgspec.structs import replace

from dpzv.declarations import method_facts
from dpzv.errors import PrivacyRefused
from dpzv.privacy.accountant import (
    LATTICE_SHARES,
    compose,
    epsilon_of_parts,
    gaussian_mu,
    lattice_delta,
    mu_left,
    sampled,
)
from dpzv.privacy.coverage import check_request, refuse_uncovered, warnings_of
from dpzv.privacy.gdp import epsilon_of, mu_of, paper_sigma_dp, zcdp_mu_of
from dpzv.privacy.head_steps import HeadSteps, head_noise
from dpzv.privacy.plan import (
    SUM_SLACK,
    PlanRequest,
    PrivacyPlan,
    capped_releases,
    normalised,
    private_starts,
    start_event,
)
from dpzv.sensitivity import clip_factor
from dpzv.terms import Neighbours
from dpzv.validate import whole

__all__ = ["make_plan", "participation_cap"]

# Relative slack for rounding: sigma_dp is larger and the budget smaller by this much.
_SLACK = 1e-12


def participation_cap(*, T: int, B: int, D: int, M: int, equal_speeds: bool) -> int:
    """How often one record can be in a batch, over all devices, in `T` rounds of `B` of `D` records.

    Device m walks one permutation cyclically, so n_m of its rounds hold a record at most ceil(n_m B/D) times.
    With `equal_speeds` devices take turns and the n_m differ by at most one. Otherwise any split of `T` can
    happen: with B/D = b/d in lowest terms ceil(n b/d) <= (n b + d - 1)/d, and idle devices add nothing.
    """
    for name, value, least in (("T", T, 0), ("B", B, 1), ("D", D, B), ("M", M, 1)):
        whole(name, value, least)
    if equal_speeds:
        each, more = divmod(T, M)
        return more * -(-(each + 1) * B // D) + (M - more) * -(-each * B // D)
    b, d = B // math.gcd(B, D), D // math.gcd(B, D)
    return min(T, (T * b + min(M, T) * (d - 1)) // d)


def make_plan(asked: PlanRequest) -> PrivacyPlan:
    """Calibrate the noise of the releases, of private starts and of a private head to a budget.

    With neither rounds nor head steps nothing ever leaves the server, so epsilon is 0 whatever the starts and the
    head are; a private start then has the noise it would have in a run that does train.

    Formal guarantee (`exact`): with releases and head steps admitted by a ledger under this plan and secret noise, the
    joint view of any coalition of devices, together with the parents' releases, is (epsilon, delta_dp)-DP for one
    record under `neighbours`.
    """
    check_request(asked)
    refuse_uncovered(asked)
    asked = normalised(asked)
    if asked.where == "uplink" and asked.T and math.isfinite(asked.epsilon):
        return _with_events(_uplink(asked))
    if not math.isinf(asked.epsilon) and asked.accounting == "exact":
        return _exact(asked)
    budget = mu_of(asked.epsilon, asked.delta_dp)
    plan = _with_budget(asked, budget, whole=budget)
    if plan.spends and math.isinf(plan.epsilon):
        nothing = math.inf
        plan = replace(plan, cap=nothing, epsilon_zero_out=nothing, epsilon_replace_one=nothing)
    elif plan.spends:
        plan = _as_published(plan)
    return _with_events(plan)


def _with_events(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with the list of all that its ledger may admit; a head whose noise is not known yet is not in it."""
    head = plan.head_steps and (plan.z or math.isinf(plan.epsilon))
    events = (
        *((capped_releases(plan),) if plan.T else ()),
        *(start_event(plan, m) for m in private_starts(plan)),
        *((HeadSteps(q=plan.q, z=plan.z, steps=plan.head_steps),) if head else ()),
    )
    return replace(plan, events=events)


def _with_budget(asked: PlanRequest, budget: float, *, whole: float) -> PrivacyPlan:
    """The shares of a joint mu of `budget`, what parents leave of `whole`; no noise of releases or head yet."""
    noisy, start = private_starts(asked), asked.start_share
    head = (asked.head_share if asked.T else 1 - start) if asked.head_steps else 0.0
    each = budget * math.sqrt(start / len(noisy)) if noisy else 0.0
    return PrivacyPlan(
        **{name: getattr(asked, name) for name in PlanRequest.__struct_fields__},
        sigma_dp=0.0,
        z=0.0,
        mu=budget * math.sqrt(1 - start - head) if asked.T else 0.0,
        mu_start=tuple(each if m in noisy else 0.0 for m in range(len(asked.starts))),
        mu_head=budget * math.sqrt(head) if asked.head_steps else 0.0,
        mu_parents=math.sqrt(max(0.0, whole**2 - budget**2)) if asked.parents else 0.0,
        cap=0.0,
        events=(),
        epsilon_zero_out=0.0,
        epsilon_replace_one=0.0,
        warnings=warnings_of(asked),
        sigma_h=0.0,
    )


def _as_published(plan: PrivacyPlan) -> PrivacyPlan:
    """The published rule; its 2C is a replaced record."""
    mu = mu_of(plan.epsilon, plan.delta_dp)
    sigma_dp = paper_sigma_dp(plan.C, plan.T, plan.D, mu)
    plan = replace(plan, sigma_dp=sigma_dp, mu=mu, cap=math.inf)
    zero_out = epsilon_of(gaussian_mu(plan.cost, "zero-out"), plan.delta_dp)
    return replace(plan, epsilon_zero_out=zero_out, epsilon_replace_one=plan.epsilon)


def _uplink(asked: PlanRequest) -> PrivacyPlan:
    """Noise on the rivals' embeddings: by the published rule, or (exact) for every upload of a record that there is.

    The exact figure is what hides one record's embeddings from whoever reads the uplink. Against devices neither is
    worth anything: labels come back without noise.
    """
    mu, s = mu_of(asked.epsilon, asked.delta_dp), clip_factor("replace-one")
    if asked.accounting == "paper":
        sigma_h = asked.B / asked.D * s * asked.C_h * math.sqrt(asked.T) / mu
    else:
        arrays = method_facts(asked.method).arrays
        sigma_h = s * asked.C_h * math.sqrt(arrays * asked.participations + asked.M) / mu  # M: the first fill
    plan = replace(_with_budget(asked, mu, whole=mu), mu=mu, cap=math.inf, sigma_h=sigma_h)
    nothing = math.inf
    if asked.accounting == "exact":
        return replace(plan, epsilon_zero_out=nothing, epsilon_replace_one=nothing)
    half = epsilon_of(mu / s, asked.delta_dp)
    return replace(plan, epsilon_zero_out=half, epsilon_replace_one=asked.epsilon)


def _exact(asked: PlanRequest) -> PrivacyPlan:
    """Public batches, Gaussian parts adding up in squares, what remains for the head; see `PlanRequest`."""
    before = replace(compose(*(parent.cost for parent in asked.parents)), lattice=0.0)
    for share in LATTICE_SHARES:
        delta_dp = asked.delta_dp * (1 - share)
        budget = mu_left(before, asked.epsilon, delta_dp, asked.neighbours) * (1 - _SLACK)
        plan = _with_releases(_with_budget(asked, budget, whole=mu_of(asked.epsilon, delta_dp)))
        if not plan.spends:
            return plan
        if lattice_delta(plan.cost.lattice, plan.epsilon) <= share * plan.delta_dp:
            return _claimed(_with_head(plan, delta_dp))
    # e^epsilon times the lattice is beyond delta_dp; concentrated DP knows no lattice, but no sampling either
    whole = zcdp_mu_of(asked.epsilon, asked.delta_dp)
    left = whole**2 - gaussian_mu(before, asked.neighbours) ** 2
    if asked.head_steps or sampled(before) or left <= 0:
        raise PrivacyRefused(
            f"noise on integers keeps no epsilon as large as {asked.epsilon:g} beside a sampled head, and none beside "
            "earlier runs that spent it; lower epsilon (below 30 is safe) or choose another head rule."
        )
    return _claimed(_with_releases(_with_budget(asked, math.sqrt(left) * (1 - _SLACK), whole=whole)))


def _with_releases(plan: PrivacyPlan) -> PrivacyPlan:
    """sigma_dp = s C sqrt(P) / (B mu), without B where each record has its own numbers, and the cap that P keeps."""
    if plan.T:
        s = clip_factor(plan.neighbours)
        divisor = 1 if plan.per_record else plan.B
        sigma_dp = s * plan.C * math.sqrt(plan.participations) / (divisor * plan.mu) * (1 + _SLACK)
        plan = replace(plan, sigma_dp=sigma_dp, cap=(plan.mu / s) ** 2)
    return _with_events(plan)


def _with_head(plan: PrivacyPlan, delta_dp: float) -> PrivacyPlan:
    """The least noise of a private head with which everything together keeps epsilon at `delta_dp`."""
    if not plan.head_steps:
        return plan
    z = head_noise(
        replace(plan.cost, lattice=0.0),
        q=plan.q,
        steps=plan.head_steps,
        epsilon=plan.epsilon,
        delta_dp=delta_dp,
        neighbours=plan.neighbours,
    )
    return _with_events(replace(plan, z=z * (1 + SUM_SLACK)))


def _claimed(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with both epsilons, the own one checked."""
    found = {name: epsilon_of_parts(plan.cost, plan.delta_dp, name) for name in get_args(Neighbours)}
    if found[plan.neighbours] > plan.epsilon:
        raise AssertionError(f"noise for epsilon={plan.epsilon} gives {found[plan.neighbours]}")
    # calibration leaves the figure smaller than asked by its tolerance only; the round one is claimed
    found[plan.neighbours] = plan.epsilon
    return replace(plan, epsilon_zero_out=found["zero-out"], epsilon_replace_one=found["replace-one"])
