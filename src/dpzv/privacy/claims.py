"""What a plan claims: part by part in figures, and whether it is a guarantee, in words."""

from __future__ import annotations

import math

from msgspec import Struct

from dpzv.privacy.accountant import Composition, compose, epsilon_of_parts
from dpzv.privacy.plan import PrivacyPlan, own_cost
from dpzv.terms import NoiseSourceName

__all__ = ["PlanPart", "parts_of", "verdict"]


class PlanPart(Struct, frozen=True, kw_only=True):
    """One part of a plan. `mu` is its share of the budget, `epsilon` what it would cost alone at delta_dp.

    `q`, `z` and `steps` describe a sampled head and are None for the Gaussian parts.
    """

    name: str
    mu: float
    epsilon: float
    q: float | None = None
    z: float | None = None
    steps: int | None = None


def parts_of(plan: PrivacyPlan) -> tuple[PlanPart, ...]:
    """Starts, releases, head and earlier runs, each on its own, for the plan's neighbours."""
    cost = own_cost(plan)

    def alone(part: Composition) -> float:
        return epsilon_of_parts(part, plan.delta_dp, plan.neighbours)

    found = []
    if cost.starts:
        joint = math.sqrt(math.fsum(mu**2 for mu in plan.mu_start))
        found.append(PlanPart(name="starts", mu=joint, epsilon=alone(Composition(starts=cost.starts))))
    if plan.T:
        releases = Composition(releases=cost.releases, lattice=cost.lattice)
        found.append(PlanPart(name="releases", mu=plan.mu, epsilon=alone(releases)))
    if plan.head_steps:
        epsilon = alone(Composition(heads=cost.heads)) if cost.heads else math.inf
        head = PlanPart(name="head", mu=plan.mu_head, epsilon=epsilon, q=plan.q, z=plan.z, steps=plan.head_steps)
        found.append(head)
    if plan.parents:
        before = compose(*(parent.cost for parent in plan.parents))
        names = ", ".join(parent.run_id[:8] for parent in plan.parents)
        found.append(PlanPart(name=f"earlier runs {names}", mu=plan.mu_parents, epsilon=alone(before)))
    return tuple(found)


def verdict(plan: PrivacyPlan, noise_source: NoiseSourceName) -> tuple[bool, str]:
    """Whether the plan's epsilon is a guarantee with this noise, and why (or why not), in words."""
    if math.isinf(plan.epsilon):
        return False, "no privacy was asked for (epsilon is infinite)"
    if plan.where == "uplink" and plan.spends:
        return False, (
            "noise on the uplink hides embeddings on their way to the server, which is trusted; what comes back "
            "carries labels without noise, so nothing is protected against curious devices"
        )
    if plan.accounting == "paper":
        return False, (
            "this reproduces the published rule and is not a guarantee against curious devices, which know the batches"
        )
    if noise_source == "seeded":
        nothing = "" if plan.spends else "; nothing is released, so epsilon is 0 with any noise"
        return False, f"simulated noise: what this plan would guarantee with secret noise{nothing}"
    if not plan.spends:
        return True, "nothing is released"
    if any(parent.noise_source == "seeded" for parent in plan.parents):
        return False, "an earlier run that this one adds up with had simulated noise"
    return True, "exact account, covered head rule and starts, secret noise, ledger before every release"
