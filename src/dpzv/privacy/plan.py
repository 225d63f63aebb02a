"""The privacy plan: what was asked for, and the noise and the caps that make it true (`planning.py` makes one).

The plan is a claim, not an odometer. It fixes, before the first release, a cap on every record's sum of squared
costs and on the number of head steps; epsilon of the caps is the claim, and the ledger keeps below the caps.
"""

from __future__ import annotations

import math

import msgspec

from dpzv.errors import ConfigError
from dpzv.privacy.accountant import Composition, SampledHead, compose, gaussian_mu
from dpzv.privacy.coverage import ParentRun, PlanRequest
from dpzv.privacy.events import LATTICE_DISTANCE, ReleaseEvent, StartEvent, grid_scale, neighbour_factor
from dpzv.privacy.gdp import epsilon_of
from dpzv.terms import Neighbours

__all__ = [
    "MOST_NUMBERS",
    "SUM_SLACK",
    "ParentRun",
    "PlanRequest",
    "PrivacyPlan",
    "claimed_mu",
    "epsilon_spent",
    "own_cost",
    "plan_from_json",
    "plan_to_json",
    "request_of",
    "start_event",
]

SUM_SLACK = 1e-6
"""Heads and starts are summed in float64, so one record can move a sum by more than its clip, relatively by 5e-7 at
worst (docs/privacy.md): their noise is larger by this much."""

MOST_NUMBERS = 1 << 16
"""The widest embedding, and the most directions of vfl-czofo; only the lattice, of order 1e-20 each, counts them."""


class PrivacyPlan(PlanRequest, frozen=True, kw_only=True):
    """The request and what follows from it. Made by `make_plan` only.

    `mu` is the Gaussian-DP parameter of all releases together and `mu_start` that of each device's start
    (0 unless it is dp-pca), both for `neighbours`. `mu_head` and `mu_parents` are the shares of the head and of
    earlier runs in the same currency: exact where they are Gaussian, else what they leave to the others. `z` is the
    noise multiplier of the dp-sgd head (0: it makes no steps). `cap` bounds every record's sum of
    (C / (B sigma_dp))^2; it is infinite where there is nothing to enforce. `epsilon_zero_out` and
    `epsilon_replace_one` are the two readings of the same noise. `sigma_h` is the noise on a rival's embeddings
    where that is on the uplink; the releases then have none.
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
    sigma_h: float = 0.0

    @property
    def per_record(self) -> bool:
        """Whether a release has numbers for each record by itself, not means over the batch."""
        return self.method == "vafl"

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
        """Epsilon for the plan's own neighbours: the one asked for, or 0 when nothing is released.

        Noise on the uplink keeps no epsilon against devices, whatever was asked for; `paper` repeats what was printed.
        """
        if not self.spends:
            return 0.0
        return math.inf if self.where == "uplink" and self.accounting == "exact" else self.epsilon

    def event(self, *, t: int, m: int, position: int, B: int, sigma_dp: float | None = None) -> ReleaseEvent:
        """A release under this plan, over a batch of `B` records, with the plan's noise unless told otherwise."""
        return ReleaseEvent(
            t=t,
            m=m,
            position=position,
            B=B,
            C=self.C,
            sigma_dp=self.sigma_dp if sigma_dp is None else sigma_dp,
            per_record=self.per_record,
        )

    @property
    def cost(self) -> Composition:
        """What the claim is about: this run at its caps, and its parents."""
        return compose(own_cost(self), *(parent.cost for parent in self.parents))


def start_event(plan: PrivacyPlan, m: int) -> StartEvent:
    """The noise of the dp-pca start of the device with index `m` in `plan.starts`."""
    if plan.starts[m] != "dp-pca":
        raise ConfigError(f"only a dp-pca start has noise, got '{plan.starts[m]}' for device {m}.")
    factor = neighbour_factor(StartEvent, plan.neighbours)
    return StartEvent(m=m, noise_multiplier=factor / plan.mu_start[m] * (1 + SUM_SLACK))


def own_cost(plan: PrivacyPlan) -> Composition:
    """The run at its caps, without its parents; nothing when it spends nothing.

    Under `paper` this is the published figure. Without a budget it is infinite.
    """
    if not plan.spends:
        return Composition()
    if plan.accounting == "paper" or math.isinf(plan.claimed_epsilon):
        return Composition(releases=(plan.mu / 2) ** 2 if math.isfinite(plan.claimed_epsilon) else math.inf)
    factor = neighbour_factor(StartEvent, plan.neighbours)
    lattice = 0.0
    if plan.T:
        # the ledger admits no batch below min_batch, so no release has coarser noise than this
        least = plan.event(t=0, m=0, position=0, B=min(plan.B, plan.min_batch))
        lattice = plan.T * _numbers(plan) * LATTICE_DISTANCE / grid_scale(least) ** 2
    return Composition(
        releases=plan.cap,
        starts=math.fsum((mu / factor) ** 2 for mu in plan.mu_start),
        heads=(SampledHead(q=plan.q, z=plan.z, steps=plan.head_steps),) if plan.z else (),
        lattice=lattice,
    )


def _numbers(plan: PrivacyPlan) -> int:
    """How many numbers a release has at most."""
    if plan.method in ("dpzv", "zoo-vfl"):
        return 1
    return MOST_NUMBERS * (plan.B if plan.per_record else 1)


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
    if math.isinf(plan.claimed_epsilon):
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
