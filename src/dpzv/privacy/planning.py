"""Makes a plan from a budget and a training schedule: the noise and the caps that keep the budget.

A request that makes no sense, or whose claim would not be covered, is refused here.
"""

from __future__ import annotations

import math
from typing import get_args

from msgspec.structs import replace

from dpzv.declarations import METHODS, STARTS, head_rule_facts, listed, method_facts
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy import accountant
from dpzv.privacy.coverage import refuse_uncovered
from dpzv.privacy.gdp import epsilon_of, mu_of, paper_sigma_dp, zcdp_mu_of
from dpzv.privacy.head_steps import mechanism_of
from dpzv.privacy.plan import (
    SUM_SLACK,
    PlanRequest,
    PrivacyPlan,
    capped_releases,
    count_events,
    private_starts,
    refuse_spent,
    request_of,
    start_event,
)
from dpzv.sensitivity import clip_factor
from dpzv.terms import Accounting, Neighbours, Protects, Where
from dpzv.validate import fraction, one_of, positive, probability, whole

__all__ = ["make_plan"]

# Relative slack for rounding: sigma_dp is larger and the budget smaller by this much.
_SLACK = 1e-12


def make_plan(asked: PlanRequest) -> PrivacyPlan:
    """Calibrate the noise of the releases, of private starts and of a private head to a budget.

    With neither rounds nor head steps nothing ever leaves the server, so epsilon is 0 whatever the starts and the
    head are; a private start then has the noise it would have in a run that does train.

    Formal guarantee (`exact`): with releases and head steps admitted by a ledger under this plan and secret noise, the
    joint view of any coalition of devices, together with the parents' releases, is (epsilon, delta_dp)-DP for one
    record under `neighbours`.
    """
    _check_request(asked)
    if math.isfinite(asked.epsilon):  # without a budget there is no claim
        refuse_uncovered(asked)
    asked = request_of(asked)
    if asked.where == "uplink" and asked.T and math.isfinite(asked.epsilon):
        return _with_events(_uplink(asked))
    if not math.isinf(asked.epsilon) and asked.accounting == "exact":
        return _exact(asked)
    budget = mu_of(asked.epsilon, asked.delta_dp)
    plan = _with_budget(asked, budget, whole=budget)
    if plan.spends and math.isinf(plan.epsilon):
        plan = replace(plan, cap=math.inf, epsilon_zero_out=math.inf, epsilon_replace_one=math.inf)
    elif plan.spends:
        plan = _as_published(plan)
    return _with_events(plan)


def _with_events(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with a list of all events that its ledger may admit; a head whose noise is not known yet is left out."""
    head = plan.head_steps and (plan.z or math.isinf(plan.epsilon))
    events = (
        *((capped_releases(plan),) if plan.T else ()),
        *(start_event(plan, m) for m in private_starts(plan)),
        *count_events(plan),
        *((mechanism_of(plan.head_rule).event(q=plan.q, z=plan.z, steps=plan.head_steps),) if head else ()),
    )
    return replace(plan, events=events)


def _with_budget(asked: PlanRequest, budget: float, *, whole: float) -> PrivacyPlan:
    """A plan that splits the joint mu `budget`, which parents leave of `whole`; releases and head have no noise yet."""
    noisy, start, base = private_starts(asked), asked.start_share, asked.base_share
    head = (asked.head_share if asked.T else 1 - start - base) if asked.head_steps else 0.0
    each = budget * math.sqrt(start / len(noisy)) if noisy else 0.0
    return PrivacyPlan(
        **{name: getattr(asked, name) for name in PlanRequest.__struct_fields__},
        sigma_dp=0.0,
        z=0.0,
        mu=budget * math.sqrt(1 - start - base - head) if asked.T else 0.0,
        mu_start=tuple(each if m in noisy else 0.0 for m in range(len(asked.starts))),
        mu_base=budget * math.sqrt(base) if base else 0.0,
        mu_head=budget * math.sqrt(head) if asked.head_steps else 0.0,
        mu_parents=math.sqrt(max(0.0, whole**2 - budget**2)) if asked.parents else 0.0,
        cap=0.0,
        events=(),
        epsilon_zero_out=0.0,
        epsilon_replace_one=0.0,
        warnings=_warnings(asked),
        sigma_h=0.0,
    )


def _as_published(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with the noise of the published rule, whose 2C stands for a replaced record."""
    mu = mu_of(plan.epsilon, plan.delta_dp)
    sigma_dp = paper_sigma_dp(plan.clip, plan.T, plan.D, mu)
    plan = replace(plan, sigma_dp=sigma_dp, mu=mu, cap=math.inf)
    zero_out = epsilon_of(accountant.gaussian_mu(plan.cost, "zero-out"), plan.delta_dp)
    return replace(plan, epsilon_zero_out=zero_out, epsilon_replace_one=plan.epsilon)


def _uplink(asked: PlanRequest) -> PrivacyPlan:
    """The plan with noise on the rivals' embeddings, by the published rule or (`exact`) for every upload of a record.

    The noise of `exact` hides one record's embeddings from a reader of the uplink. Neither noise protects anything
    against devices, since labels come back without noise.
    """
    mu, s = mu_of(asked.epsilon, asked.delta_dp), clip_factor("replace-one")
    if asked.accounting == "paper":
        sigma_h = asked.B / asked.D * s * asked.C_h * math.sqrt(asked.T) / mu
    else:
        arrays = method_facts(asked.method).arrays(asked.directions)
        sigma_h = s * asked.C_h * math.sqrt(arrays * asked.participations + asked.M) / mu  # M: the first fill
    plan = replace(_with_budget(asked, mu, whole=mu), mu=mu, cap=math.inf, sigma_h=sigma_h)
    if asked.accounting == "exact":
        return replace(plan, epsilon_zero_out=math.inf, epsilon_replace_one=math.inf)
    half = epsilon_of(mu / s, asked.delta_dp)
    return replace(plan, epsilon_zero_out=half, epsilon_replace_one=asked.epsilon)


def _exact(asked: PlanRequest) -> PrivacyPlan:
    """The plan of the exact account: batches are public, and the squared mu of Gaussian parts add up.

    A private head gets what these parts leave.
    """
    before = replace(asked.before, lattice=0.0)
    for share in accountant.LATTICE_SHARES:
        delta_dp = asked.delta_dp * (1 - share)
        budget = accountant.mu_left(before, asked.epsilon, delta_dp, asked.neighbours) * (1 - _SLACK)
        whole = mu_of(asked.epsilon, delta_dp)
        refuse_spent(asked, budget, whole)
        plan = _with_releases(_with_budget(asked, budget, whole=whole))
        if not plan.spends:
            return plan
        if accountant.lattice_delta(plan.cost.lattice, plan.epsilon) <= share * plan.delta_dp:
            return _claimed(_with_head(plan, delta_dp))
    # e^epsilon times the lattice distance is above delta_dp; concentrated DP has no such term, but allows no sampling
    whole = zcdp_mu_of(asked.epsilon, asked.delta_dp)
    if asked.head_steps or accountant.sampled(before):
        raise PrivacyRefused(
            f"with noise on integers, epsilon={asked.epsilon:g} is too large beside a sampled head; lower epsilon "
            "(below 30 is safe) or choose another head rule."
        )
    left = math.sqrt(max(0.0, whole**2 - accountant.gaussian_mu(before, asked.neighbours) ** 2))
    refuse_spent(asked, left, whole)
    return _claimed(_with_releases(_with_budget(asked, left * (1 - _SLACK), whole=whole)))


def _with_releases(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with sigma_dp = s clip sqrt(P) / (B mu) and the cap that P participations fill.

    The B is left out where each record has its own numbers.
    """
    if plan.T:
        s = clip_factor(plan.neighbours)
        divisor = 1 if plan.per_record else plan.B
        sigma_dp = s * plan.clip * math.sqrt(plan.participations) / (divisor * plan.mu) * (1 + _SLACK)
        plan = replace(plan, sigma_dp=sigma_dp, cap=(plan.mu / s) ** 2)
    return _with_events(plan)


def _with_head(plan: PrivacyPlan, delta_dp: float) -> PrivacyPlan:
    """The plan with the least noise of a private head with which everything together keeps epsilon at `delta_dp`."""
    if not plan.head_steps:
        return plan
    z = mechanism_of(plan.head_rule).calibrated(
        replace(plan.cost, lattice=0.0),
        q=plan.q,
        steps=plan.head_steps,
        epsilon=plan.epsilon,
        delta_dp=delta_dp,
        neighbours=plan.neighbours,
    )
    return _with_events(replace(plan, z=z * (1 + SUM_SLACK)))


def _claimed(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with the epsilons of both kinds of neighbours; that of its own kind is checked against the request."""
    found = {name: accountant.epsilon_of_parts(plan.cost, plan.delta_dp, name) for name in get_args(Neighbours)}
    if found[plan.neighbours] > plan.epsilon:
        raise AssertionError(f"noise for epsilon={plan.epsilon} gives {found[plan.neighbours]}")
    # the figure is below the epsilon asked for only by the tolerance of the calibration, so the latter is claimed
    found[plan.neighbours] = plan.epsilon
    return replace(plan, epsilon_zero_out=found["zero-out"], epsilon_replace_one=found["replace-one"])


def _check_request(asked: PlanRequest) -> None:
    """Refuse unknown names, and values and sizes that make no sense."""
    one_of("accounting", asked.accounting, get_args(Accounting))
    one_of("neighbours", asked.neighbours, get_args(Neighbours))
    one_of("protects", asked.protects, get_args(Protects))
    head_rule, method = head_rule_facts(asked.head_rule), method_facts(asked.method)
    one_of("noise.where", asked.where, get_args(Where))
    private = private_starts(asked)
    positive("epsilon", asked.epsilon)
    probability("delta_dp", asked.delta_dp)
    positive("C", asked.C)
    for name in ("B", "D", "M", "min_batch", "directions"):
        whole(name, getattr(asked, name), 1)
    whole("participations", asked.participations, 1 if whole("T", asked.T, 0) else 0)
    if asked.B > asked.D:
        raise ConfigError(f"a batch holds at most all D={asked.D} records, got B={asked.B}; lower B.")
    if len(asked.starts) != asked.M:
        raise ConfigError(
            f"expected one start for each of the M={asked.M} devices, got {len(asked.starts)}; give a start per device."
        )
    if private and fraction("start_share", asked.start_share) == 0:
        name = asked.starts[private[0]]
        raise ConfigError(f"a {name} start needs a share of the budget, got start_share=0; raise it above 0.")
    if head_rule.mechanism:
        _check_head(asked)
    _check_shares(asked)
    if asked.where == "uplink" and method.published != "uplink":
        others = listed(facts for facts in METHODS.values() if facts.published == "uplink")
        raise ConfigError(
            f"{method.name} adds noise to answers only, got noise.where=uplink; choose downlink, or method {others}."
        )
    if head_rule.two_points and not method.two_points:
        others = listed(facts for facts in METHODS.values() if facts.two_points)
        raise ConfigError(
            f"head rule {head_rule.name} needs the two evaluations of {others}, got method {method.name}; "
            "choose another head rule."
        )


def _check_head(asked: PlanRequest) -> None:
    """Refuse a private head without steps, batch or budget."""
    if not whole("head_steps", asked.head_steps, 1 if asked.T else 0):
        return
    if whole("head_batch", asked.head_batch, 1) > asked.D:
        raise ConfigError(
            f"the head's expected batch holds at most all D={asked.D} records, got head_batch={asked.head_batch}; "
            "lower head_batch."
        )
    if asked.T and fraction("head_share", asked.head_share) == 0:
        raise ConfigError(f"a {asked.head_rule} head needs a share of the budget, got head_share=0; raise it above 0.")


def _check_shares(asked: PlanRequest) -> None:
    """Refuse shares that leave nothing for the releases."""
    shares = request_of(asked)
    taken = (shares.head_share if asked.T else 0.0) + shares.start_share + fraction("base_share", shares.base_share)
    if asked.spends and taken >= 1:
        raise ConfigError(
            f"head_share, start_share and base_share together must stay below 1, got {taken:g}; the releases need the "
            "rest."
        )


def _warnings(asked: PlanRequest) -> tuple[str, ...]:
    """Sentences about what is allowed but weak."""
    if math.isinf(asked.epsilon):
        return ()
    found = []
    if asked.delta_dp > 1 / asked.D:
        found.append(
            f"delta_dp = {asked.delta_dp:g} is above 1/D = {1 / asked.D:.2g}, so the claim would allow one "
            "record to be given away whole; choose a smaller delta_dp."
        )
    if asked.accounting == "paper" and asked.parents:
        found.append(f"the published rule knows no earlier runs: its figure leaves out the {len(asked.parents)} named.")
    if asked.protects == "labels" and private_starts(asked):
        name, free = asked.starts[private_starts(asked)[0]], listed(facts for facts in STARTS.values() if facts.reads)
        found.append(f"the {name} starts are charged although labels alone are protected; start {free} is free there.")
    return tuple(found)
