"""The most that any attack may reach against a claim: its trade-off curve, joined with what is known anyway."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpzv.attacks.scores import questions
from dpzv.privacy.accountant import gaussian_mu, sampled, tpr_of_parts
from dpzv.privacy.plan import PrivacyPlan

__all__ = ["ceiling", "true_mu"]

# probits of the false-positive rates at which a sampled head's curve is compared with a Gaussian one, and a margin for
# what lies between them; both curves are symmetric, so half of each is enough
_GRID = np.arange(-3.0, 0.01, 0.25)
_MARGIN = 1.01


def true_mu(plan: PrivacyPlan) -> float:
    """A mu whose Gaussian curve lies above everything that the plan lets out, replace-one; infinity without a claim.

    Only the exact account of noise on the downlink is a claim against devices. With a sampled head the two curves are
    compared from a false-positive rate of 0.1 % on.
    """
    from scipy.special import ndtr, ndtri

    if not plan.spends:
        return 0.0
    if plan.accounting != "exact" or math.isinf(plan.claimed_epsilon):
        return math.inf
    cost = plan.cost
    if not sampled(cost):
        return gaussian_mu(cost, "replace-one")
    pairs = [(tpr_of_parts(cost, float(ndtr(point))), point) for point in _GRID]
    return _MARGIN * float(max(ndtri(rate) - point for rate, point in pairs if rate + ndtr(point) <= 1))


def ceiling(guess: NDArray[np.float64], y: NDArray[np.int64], mu: float) -> float:
    """The largest area under the curve of any attack that has `guess` [n, labels] and one look through mu.

    What the guess says is taken at its best: the likelihood ratio along the upper hull of its ROC curve. The look adds
    the likelihood ratio of a Gaussian that is shifted by mu, as the definition of Gaussian DP allows and no more.
    """
    if math.isinf(mu):
        return 1.0
    found = [_one(score, yes, mu) for score, yes in questions(guess, y)]
    return float(np.mean(found)) if found else math.nan


def _one(score: NDArray[np.float64], positive: NDArray[np.bool_], mu: float) -> float:
    from scipy.special import ndtr
    from sklearn.isotonic import IsotonicRegression

    share = IsotonicRegression().fit_transform(score, positive.astype(np.float64))
    levels, where = np.unique(share, return_inverse=True)
    up = np.bincount(where[positive], minlength=len(levels)) / np.count_nonzero(positive)
    down = np.bincount(where[~positive], minlength=len(levels)) / np.count_nonzero(~positive)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(levels) - np.log1p(-levels)
        apart = ratio[:, None] - ratio[None, :]  # infinities that meet are of no record pair of both kinds
        apart[np.isnan(apart)] = 0.0
        odds = ndtr((apart + mu * mu) / (mu * _ROOT)) if mu > 0 else 0.5 + 0.5 * np.sign(apart)
    return float(up @ odds @ down)


_ROOT = 2.0**0.5
