"""From an attack's error rates to the least privacy loss that explains them.

An attack guesses which of two neighbouring worlds it saw: it says "high" when its score is above a threshold that was
fixed before the scores were seen. Clopper-Pearson bounds both error rates from above; the claimed curve, with its noise
divided by a factor, says how small errors can be. The least factor that allows the errors is a lower bound for
the true one. A factor of 1 is the claim itself. `plain_bound` is what the errors say without any curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpzv.privacy.accountant import Composition, epsilon_of_parts, gaussian_mu, sampled, tpr_of_parts
from dpzv.privacy.gdp import epsilon_of

__all__ = [
    "MOST_FACTOR",
    "Evidence",
    "at_factor",
    "epsilon_bound",
    "error_bounds",
    "mu_bound",
    "noise_factor",
    "plain_bound",
]

MOST_FACTOR = 8.0
"""With a sampled head, no larger factor is tried: the claim is then broken by far."""

# the factor of a sampled head is found to within this share, and rounded down
_PRECISION = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Scores [trials] of an attack in two neighbouring worlds, and the threshold between them.

    `cost` is what the plan claims for the values the attack looked at, at `delta_dp`; `claim` is the epsilon claimed
    for everything together. All of them are for replace-one.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    threshold: float
    cost: Composition
    delta_dp: float
    claim: float


def error_bounds(evidence: Evidence, alpha: float) -> tuple[float, float]:
    """Upper bounds of the false-positive and the false-negative rate; both hold with probability 1 - `alpha`."""
    from scipy.special import betainccinv

    def upper(errors: int, trials: int) -> float:
        return 1.0 if errors == trials else float(betainccinv(errors + 1, trials - errors, alpha / 2))

    false_positives = int(np.count_nonzero(evidence.low > evidence.threshold))
    false_negatives = int(np.count_nonzero(evidence.high <= evidence.threshold))
    return upper(false_positives, len(evidence.low)), upper(false_negatives, len(evidence.high))


def mu_bound(fpr: float, fnr: float) -> float:
    """The least mu of a Gaussian curve on which a test has error rates as small as `fpr` and `fnr`."""
    from scipy.special import ndtri

    return max(0.0, -float(ndtri(fpr)) - float(ndtri(fnr))) if max(fpr, fnr) < 1 else 0.0


def at_factor(cost: Composition, factor: float) -> Composition:
    """`cost` with all noise divided by `factor`."""
    gaussian = tuple(replace(pair, square=pair.square * factor**2) for pair in cost.gaussian)
    return replace(cost, gaussian=gaussian, sampled=tuple(replace(one, z=one.z / factor) for one in cost.sampled))


def noise_factor(cost: Composition, fpr: float, fnr: float) -> float:
    """The least factor at which the claimed curve allows error rates `fpr` and `fnr`, rounded down.

    Without a sampled head it is exact; with one it is at most `MOST_FACTOR`.
    """
    if fpr + fnr >= 1:
        return 0.0
    if not sampled(cost):
        return mu_bound(fpr, fnr) / gaussian_mu(cost, "replace-one")
    low, high = 0.0, MOST_FACTOR
    if tpr_of_parts(at_factor(cost, high), fpr) < 1 - fnr:
        return high
    while high - low > _PRECISION * high:
        middle = math.sqrt(low * high) if low else high / 4
        if middle < _PRECISION:
            return 0.0
        if tpr_of_parts(at_factor(cost, middle), fpr) < 1 - fnr:
            low = middle
        else:
            high = middle
    return low


def plain_bound(evidence: Evidence, alpha: float) -> float:
    """A lower bound of epsilon at `delta_dp` with confidence 1 - `alpha`, whatever the true curve is.

    An (epsilon, delta_dp)-DP mechanism lets no test have error rates with 1 - delta_dp - fnr > e^epsilon * fpr, nor
    with the two rates exchanged. The same runs give less by it than by the claimed curve.
    """
    fpr, fnr = error_bounds(evidence, alpha)
    pairs = [(1 - evidence.delta_dp - b, a) for a, b in ((fpr, fnr), (fnr, fpr))]
    return max(0.0, *(math.log(power / error) if power > 0 else 0.0 for power, error in pairs))


def epsilon_bound(evidence: Evidence, alpha: float) -> tuple[float, float]:
    """Lower bounds of epsilon at `delta_dp` and of the noise factor, both with confidence 1 - `alpha`.

    They suppose that the true curve is the claimed one with less noise.
    """
    fpr, fnr = error_bounds(evidence, alpha)
    factor = noise_factor(evidence.cost, fpr, fnr)
    if factor == 0:
        return 0.0, 0.0
    if not sampled(evidence.cost):
        return epsilon_of(mu_bound(fpr, fnr), evidence.delta_dp), factor
    return epsilon_of_parts(at_factor(evidence.cost, factor), evidence.delta_dp, "replace-one"), factor
