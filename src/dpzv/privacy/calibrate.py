"""From a budget to the noise that keeps it, where a sampled head leaves no closed form.

Both searches start where the large-noise limit of a sampled head, a Gaussian, says, and close in on the answer with a
handful of evaluations. The result always keeps the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpzv.errors import PrivacyRefused
from dpzv.privacy.accountant import Composition, SampledHead, compose, epsilon_of_parts, gaussian_mu, sampled
from dpzv.privacy.events import ReleaseEvent, neighbour_factor
from dpzv.privacy.gdp import mu_of
from dpzv.terms import Neighbours

__all__ = ["LEAST_Z", "head_noise", "mu_left"]

LEAST_Z = 0.25
"""A head step never has less noise than this, even where a tiny `q` would let delta_dp pay for it."""

# The share of the squared mu that may be left unused in the end; never more than all is used.
_TOLERANCE = 1e-4
_MOST_EVALUATIONS = 40


def mu_left(spent: Composition, epsilon: float, delta_dp: float, neighbours: Neighbours) -> float:
    """The largest mu that Gaussian parts may still have beside `spent`, rounded down.

    Formal guarantee: `spent` together with mechanisms of joint mu ``mu_left`` is (epsilon, delta_dp)-DP.
    """
    whole = mu_of(epsilon, delta_dp) ** 2
    left = whole - gaussian_mu(spent, neighbours) ** 2
    first = whole - _mu_squared(spent, delta_dp, neighbours) if sampled(spent) and left > 0 else left
    if first <= 0:
        left = 0.0
    elif sampled(spent):
        s = neighbour_factor(ReleaseEvent, neighbours)

        def used(square: float) -> float:
            parts = compose(spent, Composition(releases=square / s**2))
            return _mu_squared(parts, delta_dp, neighbours) / whole

        def guess(square: float, part: float) -> float:
            return square + (1 - part) * whole

        left = _settle(used, guess=guess, first=first, least=0.0, most=left)
    if left <= 1e-6 * whole:
        raise PrivacyRefused(
            f"the earlier runs on these records leave nothing of epsilon={epsilon:g}; raise epsilon or stop here."
        )
    return math.sqrt(left) * (1 - 1e-12)


def head_noise(
    rest: Composition, *, q: float, steps: int, epsilon: float, delta_dp: float, neighbours: Neighbours
) -> float:
    """The least noise multiplier `z` of `steps` head steps beside `rest`, rounded up; at least `LEAST_Z`.

    Formal guarantee: `rest` and the head together are (epsilon, delta_dp)-DP.
    """
    whole = mu_of(epsilon, delta_dp) ** 2
    share = 1 - gaussian_mu(rest, neighbours) ** 2 / whole
    unit = steps * (neighbour_factor(ReleaseEvent, neighbours) * q) ** 2 / whole

    def used(x: float) -> float:  # the unknown is x = -log z, with which the cost grows
        head = SampledHead(q=q, z=math.exp(-x), steps=steps)
        return _mu_squared(compose(rest, Composition(heads=(head,))), delta_dp, neighbours) / whole

    def limit(square: float) -> float:
        """x at which the head uses `square` of the budget in the large-noise limit, unit * (e^(1/z^2) - 1)."""
        return 0.5 * math.log(math.log1p(square / unit))

    def guess(x: float, part: float) -> float:
        square = unit * math.expm1(min(math.exp(2 * x), 700.0))
        return limit(square * share / max(part - 1 + share, 1e-3 * share))

    least, most = -math.log(1e9), -math.log(LEAST_Z)
    x = least
    if share > 0:
        x = _settle(used, guess=guess, first=min(limit(share), most), least=least, most=most)
    if x <= least:
        raise PrivacyRefused(
            f"epsilon={epsilon:g} leaves nothing for {steps} head steps; raise epsilon or the head's share."
        )
    return math.exp(-x)


def _mu_squared(parts: Composition, delta_dp: float, neighbours: Neighbours) -> float:
    """The square of the mu whose epsilon at `delta_dp` is that of `parts`."""
    return mu_of(epsilon_of_parts(parts, delta_dp, neighbours), delta_dp) ** 2


def _settle(
    used: Callable[[float], float],
    *,
    guess: Callable[[float, float], float],
    first: float,
    least: float,
    most: float,
) -> float:
    """The largest x in (least, most] where ``used(x)``, which grows, is at most 1, to `_TOLERANCE`; `least` if none.

    One guess, then secants on the logarithm; a secant that leaves the bracket becomes a bisection of it.
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
