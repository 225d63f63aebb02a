"""The privacy plan: a budget and a training schedule in, the noise and the caps that make it true out.

The plan is a claim, not an odometer. It fixes, before the first release, a cap on every record's sum of
squared costs; epsilon of the caps is the claim, and the ledger keeps every record below its cap.
"""

from __future__ import annotations

import math
from typing import get_args

import msgspec

from dpzv.errors import ConfigError
from dpzv.privacy.coverage import PlanRequest, check_request, refuse_uncovered, warnings_of
from dpzv.privacy.events import ReleaseEvent, StartEvent, neighbour_factor
from dpzv.privacy.gdp import epsilon_of, mu_of, paper_sigma_dp
from dpzv.terms import Neighbours, NoiseSourceName
from dpzv.validate import whole

__all__ = [
    "PlanRequest",
    "PrivacyPlan",
    "claimed_mu",
    "epsilon_spent",
    "make_plan",
    "participation_cap",
    "plan_from_json",
    "plan_to_json",
    "request_of",
    "start_event",
    "verdict",
]

# Relative slack for rounding: sigma_dp is larger and the budget smaller by this much.
_SLACK = 1e-12


class PrivacyPlan(PlanRequest, frozen=True, kw_only=True):
    """The request and what follows from it. Made by `make_plan` only.

    `mu` is the Gaussian-DP parameter of all releases together and `mu_start` that of each device's start
    (0 unless it is dp-pca), both for `neighbours`. `cap` bounds every record's sum of (C / (B sigma_dp))^2;
    it is infinite where there is nothing to enforce. `epsilon_zero_out` and `epsilon_replace_one` are the two
    readings of the same noise.
    """

    sigma_dp: float
    mu: float
    mu_start: tuple[float, ...]
    cap: float
    epsilon_zero_out: float
    epsilon_replace_one: float
    warnings: tuple[str, ...]

    @property
    def claimed_epsilon(self) -> float:
        """Epsilon for the plan's own neighbours: the one asked for, or 0 when nothing is released."""
        return self.epsilon if self.T else 0.0


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
    """Calibrate the noise of the releases and of the dp-pca starts to a budget.

    With ``T = 0`` nothing ever leaves the server, so epsilon is 0 whatever the starts and the head are; a
    dp-pca start then has the noise it would have in a run that does train.

    Formal guarantee (`exact`): with releases admitted by a ledger under this plan and secret noise, the joint
    view of any coalition of devices is (epsilon, delta_dp)-DP for one record under `neighbours`.
    """
    check_request(asked)
    refuse_uncovered(asked)
    plan = _without_releases(asked)
    if plan.T == 0:
        return plan
    if math.isinf(plan.epsilon):
        nothing = math.inf
        return msgspec.structs.replace(
            plan, mu=nothing, cap=nothing, epsilon_zero_out=nothing, epsilon_replace_one=nothing
        )
    return _as_published(plan) if plan.accounting == "paper" else _exact(plan)


def _without_releases(asked: PlanRequest) -> PrivacyPlan:
    """The plan for ``T = 0``, which all others extend: the starts have their share of the budget."""
    noisy = asked.starts.count("dp-pca")
    share = asked.start_share if noisy else 0.0
    each = mu_of(asked.epsilon, asked.delta_dp) * (1 - _SLACK) * math.sqrt(share / noisy) if noisy else 0.0
    asked = msgspec.structs.replace(asked, start_share=share)
    return PrivacyPlan(
        **msgspec.structs.asdict(asked),
        sigma_dp=0.0,
        mu=0.0,
        mu_start=tuple(each if start == "dp-pca" else 0.0 for start in asked.starts),
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


def _exact(plan: PrivacyPlan) -> PrivacyPlan:
    """Public batches, Gaussian parts adding up in squares: sigma_dp = s C sqrt(P) / (B mu)."""
    s = neighbour_factor(ReleaseEvent, plan.neighbours)
    mu = mu_of(plan.epsilon, plan.delta_dp) * (1 - _SLACK) * math.sqrt(1 - plan.start_share)
    sigma_dp = s * plan.C * math.sqrt(plan.participations) / (plan.B * mu) * (1 + _SLACK)
    plan = msgspec.structs.replace(plan, sigma_dp=sigma_dp, mu=mu, cap=(mu / s) ** 2)
    found = {name: epsilon_of(claimed_mu(plan, name), plan.delta_dp) for name in get_args(Neighbours)}
    if found[plan.neighbours] > plan.epsilon:
        raise AssertionError(f"noise for epsilon={plan.epsilon} gives {found[plan.neighbours]}")
    # the slack makes the figure smaller than asked by rounding only; the round one is claimed
    found[plan.neighbours] = plan.epsilon
    return msgspec.structs.replace(
        plan, epsilon_zero_out=found["zero-out"], epsilon_replace_one=found["replace-one"]
    )


def start_event(plan: PrivacyPlan, m: int) -> StartEvent:
    """The noise of the dp-pca start of the device with index `m` in `plan.starts`."""
    if plan.starts[m] != "dp-pca":
        raise ConfigError(f"only a dp-pca start has noise, got '{plan.starts[m]}' for device {m}.")
    factor = neighbour_factor(StartEvent, plan.neighbours)
    return StartEvent(m=m, noise_multiplier=factor / plan.mu_start[m] * (1 + _SLACK))


def claimed_mu(plan: PrivacyPlan, neighbours: Neighbours) -> float:
    """Joint mu of releases and starts that the plan claims under `neighbours`; 0 when nothing is released.

    Under `paper` this is the published figure, with a removed record at half a replaced one.
    """
    if plan.T == 0:
        return 0.0
    if plan.accounting == "paper":
        return plan.mu * neighbour_factor(ReleaseEvent, neighbours) / 2
    return _joint_mu(plan, plan.cap, neighbours)


def epsilon_spent(plan: PrivacyPlan, *, releases: int, unit_mu_squared: float) -> float:
    """Epsilon of what has happened so far: an estimate to show beside the claim, never above it.

    `unit_mu_squared` is the largest sum of (C / (B sigma_dp))^2 of any record. Under `paper` only the number
    of `releases` counts.
    """
    if releases == 0:
        return 0.0
    if math.isinf(plan.epsilon):
        return math.inf
    if plan.accounting == "paper":
        mu = plan.mu * math.sqrt(min(1.0, releases / plan.T))
    else:
        mu = _joint_mu(plan, unit_mu_squared, plan.neighbours)
    return min(plan.claimed_epsilon, epsilon_of(mu, plan.delta_dp))


def verdict(plan: PrivacyPlan, noise_source: NoiseSourceName) -> tuple[bool, str]:
    """Whether the plan's epsilon is a guarantee with this noise, and why (or why not), in words."""
    if math.isinf(plan.epsilon):
        return False, "no privacy was asked for (epsilon is infinite)"
    if plan.accounting == "paper":
        return False, (
            "this reproduces the published rule and is not a guarantee against curious devices, which know "
            "the batches"
        )
    if noise_source == "seeded":
        nothing = "; nothing is released, so epsilon is 0 with any noise" if plan.T == 0 else ""
        return False, f"simulated noise: what this plan would guarantee with secret noise{nothing}"
    if plan.T == 0:
        return True, "nothing is released"
    return True, "exact account, covered head rule and starts, secret noise, ledger before every release"


def request_of(plan: PrivacyPlan) -> PlanRequest:
    """What was asked for, without what was computed from it."""
    return PlanRequest(**{name: getattr(plan, name) for name in PlanRequest.__struct_fields__})


def plan_to_json(plan: PrivacyPlan) -> str:
    """The plan as JSON; infinity is written "inf", which JSON numbers cannot be."""
    values = {
        name: "inf" if value == math.inf else value for name, value in msgspec.structs.asdict(plan).items()
    }
    values["mu_start"] = ["inf" if mu == math.inf else mu for mu in plan.mu_start]
    return msgspec.json.encode(values).decode()


def plan_from_json(text: str) -> PrivacyPlan:
    """The plan that `plan_to_json` wrote, bit for bit; raises msgspec.ValidationError for anything else."""
    return msgspec.json.decode(text, type=PrivacyPlan, strict=False)


def _joint_mu(plan: PrivacyPlan, unit_mu_squared: float, neighbours: Neighbours) -> float:
    """Root of the sum of squares of the releases and the dp-pca starts, under `neighbours`."""
    releases = neighbour_factor(ReleaseEvent, neighbours) ** 2 * unit_mu_squared
    change = neighbour_factor(StartEvent, neighbours) / neighbour_factor(StartEvent, plan.neighbours)
    return math.sqrt(releases + sum((change * mu) ** 2 for mu in plan.mu_start))
