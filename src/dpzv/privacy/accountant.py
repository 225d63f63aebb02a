"""What a list of events costs together. Gaussian pairs are added in closed form, sampled ones by their privacy loss.

`fold` makes a `Composition` of the events. Without a sampled pair the joint mu is exact. With one, all Gaussian pairs
become a single Gaussian and the sampled steps are composed with it as privacy loss distributions (dp-accounting),
discretised so that every figure is at or above the truth.

Stated tolerance with a sampled head: a figure is never below the truth. It is at most half a percent above it where
`delta_dp` is well above the rounding error of the transforms, which `_rounding` allows for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from msgspec import Struct

from dpzv.errors import PrivacyRefused
from dpzv.privacy import gdp
from dpzv.privacy.events import Event, Gaussian, SampledGaussian
from dpzv.sensitivity import clip_factor
from dpzv.terms import Neighbours
from dpzv.validate import probability

__all__ = [
    "LATTICE_SHARES",
    "Composition",
    "compose",
    "delta_of_parts",
    "epsilon_of_parts",
    "fold",
    "gaussian_mu",
    "lattice_delta",
    "mu_left",
    "mu_squared",
    "sampled",
    "settle",
    "tpr_of_parts",
]

LATTICE_SHARES = (1e-10, 1e-4, 0.5)
"""Shares of delta_dp that may be set aside because noise is drawn on integers; the first that is enough is taken."""

# The discretisation interval is this share of the standard deviation of one step's privacy loss; the error of epsilon
# falls with its square and is about 2e-6 here.
_FINENESS = 0.006
# The most points for a sampled step, for the Gaussian part and for all together: with more, one figure would take over
# a second.
_STEP_POINTS, _GAUSSIAN_POINTS, _MOST_POINTS = 30_000, 100_000, 400_000
# How many standard deviations of the privacy loss the distribution reaches on each side.
_REACH = 11.0
# A search may leave this share of the squared mu unused. It never uses more than there is.
_TOLERANCE = 1e-4
_MOST_EVALUATIONS = 40


class Composition(Struct, frozen=True, kw_only=True):
    """All that one record may have to pay for; every figure is under zero-out.

    `gaussian` has one entry for each factor by which replace-one enlarges a cost (`Gaussian.replaced`), in ascending
    order.
    `lattice` is the sum over releases of the distance between noise on integers and rounded Gaussian noise (see
    `lattice_delta`).
    """

    gaussian: tuple[Gaussian, ...] = ()
    sampled: tuple[SampledGaussian, ...] = ()
    lattice: float = 0.0


def fold(events: Iterable[Event]) -> Composition:
    """What `events` cost together; anything that is not an event, or has a pair that is not known, is an error."""
    parts = []
    for event in events:
        pairs = event.pairs() if isinstance(event, Event) else (event,)
        gaussian = tuple(pair for pair in pairs if isinstance(pair, Gaussian))
        drawn = tuple(pair for pair in pairs if isinstance(pair, SampledGaussian))
        if not isinstance(event, Event) or len(gaussian) + len(drawn) != len(pairs):
            raise PrivacyRefused(f"the account does not know what {event!r} costs; give the event a known pair.")
        parts.append(Composition(gaussian=gaussian, sampled=drawn, lattice=event.lattice()))
    return compose(*parts)


def compose(*parts: Composition) -> Composition:
    """The cost of all `parts` together."""
    squares: dict[float, list[float]] = {}
    steps: dict[tuple[float, float], int] = {}
    for part in parts:
        for pair in part.gaussian:
            squares.setdefault(pair.replaced, []).append(pair.square)
        for one in part.sampled:
            steps[one.q, one.z] = steps.get((one.q, one.z), 0) + one.steps
    return Composition(
        gaussian=tuple(Gaussian(square=math.fsum(found), replaced=key) for key, found in sorted(squares.items())),
        sampled=tuple(SampledGaussian(q=q, z=z, steps=n) for (q, z), n in sorted(steps.items()) if n),
        lattice=math.fsum(part.lattice for part in parts),
    )


def sampled(parts: Composition) -> tuple[SampledGaussian, ...]:
    """The steps whose batches are drawn secretly; a step over all records (q = 1) counts as a Gaussian part."""
    return tuple(one for one in parts.sampled if one.q < 1)


def gaussian_mu(parts: Composition, neighbours: Neighbours) -> float:
    """Joint mu of the Gaussian pairs and of steps over all records (q = 1); it leaves out all other sampled steps."""
    whole = math.fsum(one.steps / one.z**2 if one.z > 0 else math.inf for one in parts.sampled if one.q >= 1)
    squares: dict[float, float] = {}
    for pair in (*parts.gaussian, Gaussian(square=whole, replaced=clip_factor("replace-one"))):
        squares[pair.replaced] = squares.get(pair.replaced, 0.0) + pair.square
    replaces = neighbours == "replace-one"
    return math.sqrt(math.fsum((replaced if replaces else 1.0) ** 2 * square for replaced, square in squares.items()))


def epsilon_of_parts(parts: Composition, delta_dp: float, neighbours: Neighbours) -> float:
    """The epsilon of `parts` at `delta_dp`, rounded up.

    Formal guarantee: mechanisms with these costs are jointly (epsilon, delta_dp)-DP for one record, with the noise of
    the releases drawn on integers. Where that noise is too coarse for so large an epsilon (above 30 or so), the figure
    is that of concentrated DP, or infinity with a sampled head.
    """
    probability("delta_dp", delta_dp)
    for share in LATTICE_SHARES if parts.lattice else (0.0,):
        epsilon = _epsilon(parts, delta_dp * (1 - share), neighbours)
        if lattice_delta(parts.lattice, epsilon) <= share * delta_dp:
            return epsilon
    return math.inf if sampled(parts) else gdp.zcdp_epsilon_of(gaussian_mu(parts, neighbours), delta_dp)


def delta_of_parts(parts: Composition, epsilon: float, neighbours: Neighbours) -> float:
    """The delta_dp of `parts` at `epsilon` (>= 0), rounded up with a sampled head, else the nearest value.

    At epsilon 0 it is the advantage: the largest true-positive minus false-positive rate of any test of one record.
    """
    if _unbounded(parts):
        return 1.0
    extra = lattice_delta(parts.lattice, epsilon)
    if not sampled(parts):
        return min(1.0, gdp.delta_of(epsilon, gaussian_mu(parts, neighbours)) + extra)
    found = float(_accountant(parts, neighbours).get_delta(epsilon))
    return min(1.0, max(0.0, found) + _rounding(parts) + extra)


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

    # the value is convex in e^epsilon, so it has a single minimum
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


def mu_left(spent: Composition, epsilon: float, delta_dp: float, neighbours: Neighbours) -> float:
    """The largest mu that Gaussian parts may still have beside `spent`, rounded down; 0 if nothing is left.

    Formal guarantee: `spent` together with mechanisms of joint mu ``mu_left`` is (epsilon, delta_dp)-DP.
    """
    whole = gdp.mu_of(epsilon, delta_dp) ** 2
    left = whole - gaussian_mu(spent, neighbours) ** 2
    first = whole - mu_squared(spent, delta_dp, neighbours) if sampled(spent) and left > 0 else left
    if first <= 0:
        left = 0.0
    elif sampled(spent):
        s = clip_factor(neighbours)

        def used(square: float) -> float:
            more = Gaussian(square=square / s**2, replaced=clip_factor("replace-one"))
            parts = compose(spent, Composition(gaussian=(more,)))
            return mu_squared(parts, delta_dp, neighbours) / whole

        def guess(square: float, part: float) -> float:
            return square + (1 - part) * whole

        left = settle(used, guess=guess, first=first, least=0.0, most=left)
    return math.sqrt(max(0.0, left)) * (1 - 1e-12)


def mu_squared(parts: Composition, delta_dp: float, neighbours: Neighbours) -> float:
    """The square of the mu whose epsilon at `delta_dp` is that of `parts`."""
    return gdp.mu_of(epsilon_of_parts(parts, delta_dp, neighbours), delta_dp) ** 2


def settle(
    used: Callable[[float], float], *, guess: Callable[[float, float], float], first: float, least: float, most: float
) -> float:
    """The largest x in (least, most] at which the growing `used` is at most 1, to `_TOLERANCE`; `least` if none is.

    The search makes one guess and then takes secants on the logarithm. Where a secant leaves the bracket, the bracket
    is halved instead.
    """
    low, high, x = least, math.inf, first
    found: list[tuple[float, float]] = []
    for _ in range(_MOST_EVALUATIONS):
        part = used(x)
        if part <= 1 and (part >= 1 - _TOLERANCE or x >= most):
            return x
        found.append((x, math.log(part) + 0.5 * _TOLERANCE))
        low, high = (x, high) if part <= 1 else (low, x)
        if len(found) == 1:
            x = guess(x, part * (1 + 0.5 * _TOLERANCE))
        else:
            (before, at_before), (last, at_last) = found[-2:]
            x = last - at_last * (last - before) / (at_last - at_before) if at_last != at_before else math.inf
        if not low < x < high:
            x = (low + high) / 2
        x = min(x, most)
    return low


def lattice_delta(lattice: float, epsilon: float) -> float:
    """What noise on integers adds to delta_dp at `epsilon`.

    In grid units the discrete Gaussian of scale s is within total variation 0.0202/s^2 of the rounded continuous one.
    `lattice` is the sum of these distances over the releases. Changing both neighbours' transcripts by that much in
    total variation raises delta_dp by at most (1 + e^epsilon) times that much.
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
    return any(math.isinf(pair.square) for pair in parts.gaussian) or any(one.z <= 0 for one in parts.sampled)


def _rounding(parts: Composition) -> float:
    """How much of delta_dp the rounding in the Fourier transforms may hide.

    It is four times the error measured with up to a million steps of q = 1, whose closed form is known. The tests
    compare the account with a second one, which uses no transforms.
    """
    return 1e-14 + 2e-16 * sum(one.steps for one in parts.sampled)


@lru_cache(maxsize=8)
def _accountant(parts: Composition, neighbours: Neighbours) -> Any:
    """The PLD accountant of `parts`; it takes zero-out costs and doubles them itself for replace-one."""
    # imported here because it is slow to load, and plans without a sampled head never need it
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if neighbours == "replace-one" else relations.REPLACE_SPECIAL
    accountant = PLDAccountant(relation, _interval(parts, neighbours))
    # for replace-one the accountant doubles every cost, but a start grows by sqrt(2) only: so the joint mu, which has
    # the right factors, enters divided by what the accountant multiplies with
    mu_1 = gaussian_mu(parts, neighbours) / clip_factor(neighbours)
    if mu_1 > 0:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu_1))
    for one in sampled(parts):
        step = dp_accounting.PoissonSampledDpEvent(one.q, dp_accounting.GaussianDpEvent(one.z))
        accountant.compose(step, one.steps)
    return accountant


def _interval(parts: Composition, neighbours: Neighbours) -> float:
    """The discretisation interval: fine against one sampled step, coarse enough to be quick."""
    s = clip_factor(neighbours)
    mu = gaussian_mu(parts, neighbours)
    finest, coarsest, variance = math.inf, 2 * _REACH * mu / _GAUSSIAN_POINTS, mu**2
    for one in sampled(parts):
        exponent = min(1 / one.z**2, 700.0)
        spread = s * min(one.q * math.sqrt(math.expm1(exponent)), 1 / one.z)
        tail = min(_REACH / one.z + exponent / 2, 700.0)
        finest = min(finest, spread)
        coarsest = max(coarsest, s * math.log1p(one.q * math.expm1(tail)) / _STEP_POINTS)
        variance += one.steps * spread**2
    coarsest = max(coarsest, (2 * _REACH * math.sqrt(variance) + variance) / _MOST_POINTS)
    return coarsest if math.isinf(finest) else max(_FINENESS * finest, coarsest)
