"""The privacy plan: a budget and a training schedule in, the noise and the caps that make it true out.

The plan is a claim, not an odometer. It fixes, before the first release, a cap on every record's sum of squared
costs and on the number of head steps; epsilon of the caps is the claim, and the ledger keeps below the caps.
"""

from __future__ import annotations

import math
from typing import get_args

import msgspec

from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.accountant import (
    LATTICE_SHARES,
    Composition,
    SampledHead,
    compose,
    epsilon_of_parts,
    gaussian_mu,
    lattice_delta,
    sampled,
)
from dpzv.privacy.calibrate import head_noise, mu_left
from dpzv.privacy.coverage import ParentRun, PlanRequest, check_request, normalised, refuse_uncovered, warnings_of
from dpzv.privacy.events import LATTICE_DISTANCE, ReleaseEvent, StartEvent, grid_scale, neighbour_factor
from dpzv.privacy.gdp import epsilon_of, mu_of, paper_sigma_dp, zcdp_mu_of
from dpzv.terms import Neighbours
from dpzv.validate import whole

__all__ = [
    "ParentRun",
    "PlanRequest",
    "PrivacyPlan",
    "claimed_mu",
    "epsilon_spent",
    "make_plan",
    "own_cost",
    "participation_cap",
    "plan_from_json",
    "plan_to_json",
    "request_of",
    "start_event",
]

# Relative slack for rounding: sigma_dp is larger and the budget smaller by this much.
_SLACK = 1e-12
# Heads and starts are summed in float64, so one record can move a sum by more than its clip, relatively by 5e-7 at
# worst (docs/privacy.md): their noise is larger by this much.
_SUM_SLACK = 1e-6


class PrivacyPlan(PlanRequest, frozen=True, kw_only=True):
    """The request and what follows from it. Made by `make_plan` only.

    `mu` is the Gaussian-DP parameter of all releases together and `mu_start` that of each device's start
    (0 unless it is dp-pca), both for `neighbours`. `mu_head` and `mu_parents` are the shares of the head and of
    earlier runs in the same currency: exact where they are Gaussian, else what they leave to the others. `z` is the
    noise multiplier of the dp-sgd head (0: it makes no steps). `cap` bounds every record's sum of
    (C / (B sigma_dp))^2; it is infinite where there is nothing to enforce. `epsilon_zero_out` and
    `epsilon_replace_one` are the two readings of the same noise.
    """

    sigma_dp: float
    z: float
    mu: float
    mu_start: tuple[float, ...]
    mu_head: float
    mu_parents: float
    cap: float
    epsilon_zero_out: float
    epsilon_replace_one: float
    warnings: tuple[str, ...]

    @property
    def q(self) -> float:
        """The probability that a record is in the batch of a head step; 0 without a dp-sgd head."""
        return self.head_batch / self.D

    @property
    def spends(self) -> bool:
        """Whether anything that depends on records is released, or counts as released."""
        return self.T > 0 or self.head_steps > 0

    @property
    def claimed_epsilon(self) -> float:
        """Epsilon for the plan's own neighbours: the one asked for, or 0 when nothing is released."""
        return self.epsilon if self.spends else 0.0

    @property
    def cost(self) -> Composition:
        """What the claim is about: this run at its caps, and its parents."""
        return compose(own_cost(self), *(parent.cost for parent in self.parents))


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
    """Calibrate the noise of the releases, of the dp-pca starts and of a dp-sgd head to a budget.

    With neither rounds nor head steps nothing ever leaves the server, so epsilon is 0 whatever the starts and the
    head are; a dp-pca start then has the noise it would have in a run that does train.

    Formal guarantee (`exact`): with releases and head steps admitted by a ledger under this plan and secret noise, the
    joint view of any coalition of devices, together with the parents' releases, is (epsilon, delta_dp)-DP for one
    record under `neighbours`.
    """
    check_request(asked)
    refuse_uncovered(asked)
    asked = normalised(asked)
    if not math.isinf(asked.epsilon) and asked.accounting == "exact":
        return _exact(asked)
    budget = mu_of(asked.epsilon, asked.delta_dp)
    plan = _with_budget(asked, budget, whole=budget)
    if not plan.spends:
        return plan
    if math.isinf(plan.epsilon):
        nothing = math.inf
        return msgspec.structs.replace(plan, cap=nothing, epsilon_zero_out=nothing, epsilon_replace_one=nothing)
    return _as_published(plan)


def _with_budget(asked: PlanRequest, budget: float, *, whole: float) -> PrivacyPlan:
    """The shares of a joint mu of `budget`, what parents leave of `whole`; no noise of releases or head yet."""
    noisy, start = asked.starts.count("dp-pca"), asked.start_share
    head = (asked.head_share if asked.T else 1 - start) if asked.head_steps else 0.0
    each = budget * math.sqrt(start / noisy) if noisy else 0.0
    return PrivacyPlan(
        **{name: getattr(asked, name) for name in PlanRequest.__struct_fields__},
        sigma_dp=0.0,
        z=0.0,
        mu=budget * math.sqrt(1 - start - head) if asked.T else 0.0,
        mu_start=tuple(each if name == "dp-pca" else 0.0 for name in asked.starts),
        mu_head=budget * math.sqrt(head) if asked.head_steps else 0.0,
        mu_parents=math.sqrt(max(0.0, whole**2 - budget**2)) if asked.parents else 0.0,
        cap=0.0,
        epsilon_zero_out=0.0,
        epsilon_replace_one=0.0,
        warnings=warnings_of(asked),
    )


def _as_published(plan: PrivacyPlan) -> PrivacyPlan:
    """The published rule; its 2C is a replaced record."""
    mu = mu_of(plan.epsilon, plan.delta_dp)
    sigma_dp = paper_sigma_dp(plan.C, plan.T, plan.D, mu)
    plan = msgspec.structs.replace(plan, sigma_dp=sigma_dp, mu=mu, cap=math.inf)
    return msgspec.structs.replace(
        plan,
        epsilon_zero_out=epsilon_of(claimed_mu(plan, "zero-out"), plan.delta_dp),
        epsilon_replace_one=plan.epsilon,
    )


def _exact(asked: PlanRequest) -> PrivacyPlan:
    """Public batches, Gaussian parts adding up in squares, what remains for the head; see `PlanRequest`."""
    before = msgspec.structs.replace(compose(*(parent.cost for parent in asked.parents)), lattice=0.0)
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
    """sigma_dp = s C sqrt(P) / (B mu) and the cap that P participations just keep."""
    if plan.T == 0:
        return plan
    s = neighbour_factor(ReleaseEvent, plan.neighbours)
    sigma_dp = s * plan.C * math.sqrt(plan.participations) / (plan.B * plan.mu) * (1 + _SLACK)
    return msgspec.structs.replace(plan, sigma_dp=sigma_dp, cap=(plan.mu / s) ** 2)


def _with_head(plan: PrivacyPlan, delta_dp: float) -> PrivacyPlan:
    """The least noise of a dp-sgd head with which everything together keeps epsilon at `delta_dp`."""
    if not plan.head_steps:
        return plan
    z = head_noise(
        msgspec.structs.replace(plan.cost, lattice=0.0),
        q=plan.q,
        steps=plan.head_steps,
        epsilon=plan.epsilon,
        delta_dp=delta_dp,
        neighbours=plan.neighbours,
    )
    return msgspec.structs.replace(plan, z=z * (1 + _SUM_SLACK))


def _claimed(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with both epsilons, the own one checked."""
    found = {name: epsilon_of_parts(plan.cost, plan.delta_dp, name) for name in get_args(Neighbours)}
    if found[plan.neighbours] > plan.epsilon:
        raise AssertionError(f"noise for epsilon={plan.epsilon} gives {found[plan.neighbours]}")
    # calibration leaves the figure smaller than asked by its tolerance only; the round one is claimed
    found[plan.neighbours] = plan.epsilon
    return msgspec.structs.replace(plan, epsilon_zero_out=found["zero-out"], epsilon_replace_one=found["replace-one"])


def start_event(plan: PrivacyPlan, m: int) -> StartEvent:
    """The noise of the dp-pca start of the device with index `m` in `plan.starts`."""
    if plan.starts[m] != "dp-pca":
        raise ConfigError(f"only a dp-pca start has noise, got '{plan.starts[m]}' for device {m}.")
    factor = neighbour_factor(StartEvent, plan.neighbours)
    return StartEvent(m=m, noise_multiplier=factor / plan.mu_start[m] * (1 + _SUM_SLACK))


def own_cost(plan: PrivacyPlan) -> Composition:
    """The run at its caps, without its parents; nothing when it spends nothing.

    Under `paper` this is the published figure. Without a budget it is infinite.
    """
    if not plan.spends:
        return Composition()
    if plan.accounting == "paper" or math.isinf(plan.epsilon):
        return Composition(releases=(plan.mu / 2) ** 2 if math.isfinite(plan.epsilon) else math.inf)
    factor = neighbour_factor(StartEvent, plan.neighbours)
    lattice = 0.0
    if plan.T:
        # the ledger admits no batch below min_batch, so no release has coarser noise than this
        least = ReleaseEvent(t=0, m=0, position=0, B=min(plan.B, plan.min_batch), C=plan.C, sigma_dp=plan.sigma_dp)
        lattice = plan.T * LATTICE_DISTANCE / grid_scale(least) ** 2
    return Composition(
        releases=plan.cap,
        starts=math.fsum((mu / factor) ** 2 for mu in plan.mu_start),
        heads=(SampledHead(q=plan.q, z=plan.z, steps=plan.head_steps),) if plan.z else (),
        lattice=lattice,
    )


def claimed_mu(plan: PrivacyPlan, neighbours: Neighbours) -> float:
    """Joint mu of releases and starts (not of a sampled head) under `neighbours`; 0 when nothing is released.

    Under `paper` this is the published figure, with a removed record at half a replaced one.
    """
    return gaussian_mu(plan.cost, neighbours)


def epsilon_spent(plan: PrivacyPlan, *, releases: int, unit_mu_squared: float, head_steps: int = 0) -> float:
    """Epsilon of what has happened so far: an estimate to show beside the claim, never above it.

    `unit_mu_squared` is the largest sum of (C / (B sigma_dp))^2 of any record. Under `paper` only the number of
    `releases` counts. Steps of a sampled head are taken to share its `mu_head` evenly, which is right at both ends.
    """
    if math.isinf(plan.epsilon):
        return math.inf if releases or head_steps else 0.0
    if plan.accounting == "paper":
        mu = plan.mu * math.sqrt(min(1.0, releases / plan.T)) if releases else 0.0
    else:
        square = plan.mu_parents**2
        if releases or head_steps:
            square += neighbour_factor(ReleaseEvent, plan.neighbours) ** 2 * unit_mu_squared
            square += math.fsum(mu**2 for mu in plan.mu_start)
        if head_steps:
            square += plan.mu_head**2 * head_steps / plan.head_steps
        mu = math.sqrt(square)
    return min(plan.claimed_epsilon, epsilon_of(mu, plan.delta_dp))


def request_of(plan: PlanRequest) -> PlanRequest:
    """What was asked for, without what was computed from it."""
    return PlanRequest(**{name: getattr(plan, name) for name in PlanRequest.__struct_fields__})


def plan_to_json(plan: PrivacyPlan) -> str:
    """The plan as JSON; infinity is written "inf", which JSON numbers cannot be."""
    values = {name: "inf" if value == math.inf else value for name, value in msgspec.structs.asdict(plan).items()}
    values["mu_start"] = ["inf" if mu == math.inf else mu for mu in plan.mu_start]
    return msgspec.json.encode(values).decode()


def plan_from_json(text: str) -> PrivacyPlan:
    """The plan that `plan_to_json` wrote, bit for bit; raises msgspec.ValidationError for anything else."""
    return msgspec.json.decode(text, type=PrivacyPlan, strict=False)
