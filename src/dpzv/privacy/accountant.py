"""What everything together costs: Gaussian parts in closed form, secretly sampled head steps by their privacy loss.

A `Composition` holds costs in units of zero-out. Without a sampled head the joint mu is exact. With one, all
Gaussian parts become a single Gaussian and the head's steps are composed with it as privacy loss distributions
(dp-accounting), discretised so that every figure is at or above the truth.

Stated tolerance with a sampled head: never below the truth, and at most half a percent above it where `delta_dp` is
well above the rounding of the transforms, which is allowed for (`_rounding`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from msgspec import Struct

from dpzv.privacy import gdp
from dpzv.privacy.events import ReleaseEvent, StartEvent, neighbour_factor
from dpzv.terms import Neighbours
from dpzv.validate import probability

__all__ = [
    "LATTICE_SHARES",
    "Composition",
    "SampledHead",
    "advantage_of_parts",
    "compose",
    "delta_of_parts",
    "epsilon_of_parts",
    "gaussian_mu",
    "lattice_delta",
    "sampled",
    "tpr_of_parts",
]

LATTICE_SHARES = (1e-10, 1e-4, 0.5)
"""Shares of delta_dp that may pay for noise on integers: the first that is enough is set aside."""

# The discretisation interval is this share of the standard deviation of one step's privacy loss; the error of epsilon
# falls with its square and is about 2e-6 here.
_FINENESS = 0.006
# More points than these, in a head step, a Gaussian part and all together, would make one figure slower than a second.
_STEP_POINTS, _GAUSSIAN_POINTS, _MOST_POINTS = 30_000, 100_000, 400_000
# How many standard deviations of the privacy loss the distribution reaches on each side.
_REACH = 11.0


class SampledHead(Struct, frozen=True, kw_only=True):
    """`steps` private steps of w_0: each record is in a step's batch with secret probability `q`.

    The noise on the sum of the clipped gradients has standard deviation `z` times the clip.
    """

    q: float
    z: float
    steps: int


class Composition(Struct, frozen=True, kw_only=True):
    """What one record may pay for, each figure under zero-out.

    `releases` and `starts` are sums of squared `unit_mu`. `lattice` is the sum over releases of the distance between
    noise on integers and rounded Gaussian noise (see `lattice_delta`).
    """

    releases: float = 0.0
    starts: float = 0.0
    heads: tuple[SampledHead, ...] = ()
    lattice: float = 0.0


def compose(*parts: Composition) -> Composition:
    """Everything of `parts` together."""
    steps: dict[tuple[float, float], int] = {}
    for part in parts:
        for head in part.heads:
            steps[head.q, head.z] = steps.get((head.q, head.z), 0) + head.steps
    return Composition(
        releases=math.fsum(part.releases for part in parts),
        starts=math.fsum(part.starts for part in parts),
        heads=tuple(SampledHead(q=q, z=z, steps=n) for (q, z), n in sorted(steps.items()) if n),
        lattice=math.fsum(part.lattice for part in parts),
    )


def sampled(parts: Composition) -> tuple[SampledHead, ...]:
    """The heads whose batches are drawn; one over all records is a Gaussian part."""
    return tuple(head for head in parts.heads if head.q < 1)


def gaussian_mu(parts: Composition, neighbours: Neighbours) -> float:
    """Joint mu of the releases, the starts and head steps over all records (q = 1); other heads are not in it."""
    whole = math.fsum(head.steps / head.z**2 if head.z > 0 else math.inf for head in parts.heads if head.q >= 1)
    releases = neighbour_factor(ReleaseEvent, neighbours) ** 2 * (parts.releases + whole)
    return math.sqrt(releases + neighbour_factor(StartEvent, neighbours) ** 2 * parts.starts)


def epsilon_of_parts(parts: Composition, delta_dp: float, neighbours: Neighbours) -> float:
    """The epsilon of `parts` at `delta_dp`, rounded up.

    Formal guarantee: mechanisms with these costs are jointly (epsilon, delta_dp)-DP for one record, the noise of
    the releases being drawn on integers. Where that noise is too coarse for so large an epsilon (above 30 or so), the
    figure is that of concentrated DP, and infinite with a sampled head.
    """
    probability("delta_dp", delta_dp)
    for share in LATTICE_SHARES if parts.lattice else (0.0,):
        epsilon = _epsilon(parts, delta_dp * (1 - share), neighbours)
        if lattice_delta(parts.lattice, epsilon) <= share * delta_dp:
            return epsilon
    return math.inf if sampled(parts) else gdp.zcdp_epsilon_of(gaussian_mu(parts, neighbours), delta_dp)


def delta_of_parts(parts: Composition, epsilon: float, neighbours: Neighbours) -> float:
    """The delta_dp of `parts` at `epsilon` (>= 0), rounded up with a sampled head, else the nearest value."""
    if _unbounded(parts):
        return 1.0
    extra = lattice_delta(parts.lattice, epsilon)
    if not sampled(parts):
        return min(1.0, gdp.delta_of(epsilon, gaussian_mu(parts, neighbours)) + extra)
    found = float(_accountant(parts, neighbours).get_delta(epsilon))
    return min(1.0, max(0.0, found) + _rounding(parts) + extra)


def advantage_of_parts(parts: Composition) -> float:
    """Largest true-positive minus false-positive rate of any test of one record, replace-one; rounded up."""
    return delta_of_parts(parts, 0.0, "replace-one")


def tpr_of_parts(parts: Composition, fpr: float) -> float:
    """Largest true-positive rate of any test of one record with false-positive rate `fpr`, replace-one; rounded up.

    A test with false-positive rate a has true-positive rate at most ``delta(epsilon) + e^epsilon * a``, whatever
    epsilon; the least of these over epsilon is the curve.
    """
    if _unbounded(parts):
        return 1.0
    if not sampled(parts):
        found = gdp.tpr_at_fpr(gaussian_mu(parts, "replace-one"), fpr)
        return min(1.0, found + lattice_delta(parts.lattice, 0.0))
    low, high = 0.0, -math.log(probability("fpr", fpr))
    golden = (math.sqrt(5) - 1) / 2
    best = 1.0

    def value(epsilon: float) -> float:
        return delta_of_parts(parts, epsilon, "replace-one") + math.exp(epsilon) * fpr

    # convex in e^epsilon, so it has one valley
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(30):
        best = min(best, at_left, at_right)
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = value(right)
    return best


def lattice_delta(lattice: float, epsilon: float) -> float:
    """What noise on integers adds to delta_dp at `epsilon`.

    In grid units the discrete Gaussian of scale s is within total variation 0.0202/s^2 of the rounded continuous one.
    `lattice` is the sum of these over the releases. Changing both neighbours' transcripts by that much in total
    variation raises delta_dp by at most (1 + e^epsilon) times it.
    """
    if lattice == 0:
        return 0.0
    return lattice * (1 + math.exp(epsilon)) if epsilon < 700 else math.inf


def _epsilon(parts: Composition, delta_dp: float, neighbours: Neighbours) -> float:
    """Epsilon with continuous noise."""
    if _unbounded(parts):
        return math.inf
    if not sampled(parts):
        return gdp.epsilon_of(gaussian_mu(parts, neighbours), delta_dp)
    left = delta_dp - _rounding(parts)
    return float(_accountant(parts, neighbours).get_epsilon(left)) if left > 0 else math.inf


def _unbounded(parts: Composition) -> bool:
    return math.isinf(parts.releases + parts.starts) or any(head.z <= 0 for head in parts.heads)


def _rounding(parts: Composition) -> float:
    """What rounding in the Fourier transforms may hide of delta_dp.

    Four times what was measured with up to a million steps of q = 1, whose closed form is known.
    """
    return 1e-14 + 2e-16 * sum(head.steps for head in parts.heads)


@lru_cache(maxsize=8)
def _accountant(parts: Composition, neighbours: Neighbours) -> Any:
    """The PLD accountant of `parts`; it takes zero-out costs and doubles them itself for replace-one."""
    # imported here: it costs more than all else, and plans without a sampled head never need it
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if neighbours == "replace-one" else relations.REPLACE_SPECIAL
    accountant = PLDAccountant(relation, _interval(parts, neighbours))
    # a start moves by sqrt(2) only under replace-one, so it enters divided by what the accountant multiplies with
    mu_1 = gaussian_mu(parts, neighbours) / neighbour_factor(ReleaseEvent, neighbours)
    if mu_1 > 0:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu_1))
    for head in sampled(parts):
        step = dp_accounting.PoissonSampledDpEvent(head.q, dp_accounting.GaussianDpEvent(head.z))
        accountant.compose(step, head.steps)
    return accountant


def _interval(parts: Composition, neighbours: Neighbours) -> float:
    """The discretisation interval: fine against one head step, coarse enough to be quick."""
    s = neighbour_factor(ReleaseEvent, neighbours)
    mu = gaussian_mu(parts, neighbours)
    finest, coarsest, variance = math.inf, 2 * _REACH * mu / _GAUSSIAN_POINTS, mu**2
    for head in sampled(parts):
        exponent = min(1 / head.z**2, 700.0)
        one = s * min(head.q * math.sqrt(math.expm1(exponent)), 1 / head.z)
        tail = min(_REACH / head.z + exponent / 2, 700.0)
        finest = min(finest, one)
        coarsest = max(coarsest, s * math.log1p(head.q * math.expm1(tail)) / _STEP_POINTS)
        variance += head.steps * one**2
    coarsest = max(coarsest, (2 * _REACH * math.sqrt(variance) + variance) / _MOST_POINTS)
    return coarsest if math.isinf(finest) else max(_FINENESS * finest, coarsest)
