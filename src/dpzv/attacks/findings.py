"""From an attack's guesses to a row: score, floor, ceiling and interval.

A score is the area under the ROC curve, with its error and that of a difference (DeLong et al., 1988). A guess is a
table [n, labels]: how much an attack believes in each label of each record. For several labels the area is the mean
over labels of "this one against all others". A guess about several yes-or-no questions [n, c] is scored by answers
[n, c]; the area is the mean over the questions. 1/2 is blind guessing, 1 is certainty. The ceiling is the most that any
attack may reach if the claim is true: by the claim's trade-off curve together with what is known without the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.privacy.accountant import gaussian_mu, sampled, tpr_of_parts
from dpzv.privacy.plan import PrivacyPlan

__all__ = ["AttackRow", "RunFacts", "Tried", "area", "ceiling", "difference", "rows_of", "true_mu"]

CONFIDENCE_OF_ROWS = 0.99
"""The confidence of all intervals of one run together."""


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """One try of an attack: its guesses [n, labels] about labels `y` [n], or [n, c] about answers `y` [n, c].

    `floor` is what the same attack guesses from its own features and known labels only. `unseen` is what it guesses of
    records that the run was not trained on, with labels `y_unseen`; `None` if it can say nothing of them.
    """

    guess: NDArray[np.float64]
    floor: NDArray[np.float64]
    y: NDArray[np.int64]
    unseen: NDArray[np.float64] | None = None
    y_unseen: NDArray[np.int64] | None = None


class RunFacts(msgspec.Struct, frozen=True):
    """What is known of the run that was attacked; `epsilon` is the true one, `None` where nothing is promised."""

    method: str
    epsilon: float | None
    asked_epsilon: float | None
    noise: str
    seed: int
    data: str


class AttackRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one attack reached on one run, as the area under the curve (1/2: blind guessing).

    `floor` is reached without the run, `unseen` on records that were not part of it, and `ceiling` is the most that the
    claim allows. `interval` is that of `score`. `leaks` says that the score is above floor and `unseen` beyond its
    interval, `broken` that it is above the ceiling. What is not `covered`, such as what the trusted server sees, no
    claim of any run is about; there both are false.
    """

    attack: str
    target: str
    method: str
    epsilon: float | None
    score: float
    floor: float
    ceiling: float
    interval: tuple[float, float]
    unseen: float | None
    leaks: bool
    broken: bool
    covered: bool
    run: RunFacts

    @property
    def verdict(self) -> str:
        """The row in a word."""
        if not self.covered:
            return "not covered"
        return "BROKEN" if self.broken else "leaks" if self.leaks else "-"


def rows_of(
    found: Sequence[tuple[str, str, Sequence[Tried]]], run: RunFacts, mu: Sequence[float | None]
) -> list[AttackRow]:
    """The rows of attacks, each with its name, target and tries; `mu` bounds each, or is `None` without a claim."""
    from scipy.special import ndtri

    width = -float(ndtri((1 - CONFIDENCE_OF_ROWS) / 2 / max(1, len(found))))
    return [_row(*one, run, each, width) for one, each in zip(found, mu, strict=True)]


def _row(attack: str, target: str, tries: Sequence[Tried], run: RunFacts, of: float | None, width: float) -> AttackRow:
    mu = math.inf if of is None else of
    scores = [area(one.guess, one.y) for one in tries]
    floors = [area(one.floor, one.y) for one in tries]
    score, error = _together([(one.value, one.error) for one in scores])
    above, of_floor = _together([difference(a, b, paired=True) for a, b in zip(scores, floors, strict=True)])
    unseen, leaks = None, above > width * of_floor
    limits = [ceiling(one.floor, one.y, mu) for one in tries]
    others: list[Area] = []
    for one in tries:
        if one.unseen is not None and one.y_unseen is not None:
            others.append(area(one.unseen, one.y_unseen))
            limits.append(ceiling(one.unseen, one.y_unseen, mu))
    if others:
        unseen, _ = _together([(one.value, one.error) for one in others])
        gap, of_gap = _together([difference(a, b, paired=False) for a, b in zip(scores, others, strict=True)])
        leaks = leaks and gap > width * of_gap
    most = max(limits)
    return AttackRow(
        attack=attack,
        target=target,
        method=run.method,
        epsilon=run.epsilon,
        score=score,
        floor=_together([(one.value, one.error) for one in floors])[0],
        ceiling=most,
        interval=(max(0.0, score - width * error), min(1.0, score + width * error)),
        unseen=unseen,
        leaks=leaks and of is not None,
        broken=score - width * error > most,
        covered=of is not None,
        run=run,
    )


def _together(tries: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of several tries on the same records, and its error: that of one try and that of their choice."""
    values = np.array([value for value, _ in tries])
    drawn = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), math.hypot(float(np.mean([error for _, error in tries])), drawn)


Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """An area under the curve, and what each record adds to its error."""

    value: float
    influence: Values

    @property
    def error(self) -> float:
        """The standard error, over the choice of records."""
        return _error(self.influence)


def questions(guess: Values, y: NDArray[np.int64]) -> list[tuple[Values, NDArray[np.bool_]]]:
    """A guess as yes-or-no questions: a number [n] and the answer [n] for each; those with one answer are left out."""
    if y.ndim == 2:
        asked = [(guess[:, j], y[:, j] == 1) for j in range(y.shape[1])]
    elif guess.shape[1] == 2:
        asked = [(guess[:, 1] - guess[:, 0], y == 1)]
    else:
        asked = [(guess[:, label], y == label) for label in range(guess.shape[1])]
    return [(score, yes) for score, yes in asked if 1 < np.count_nonzero(yes) < len(y) - 1]


def area(guess: Values, y: NDArray[np.int64]) -> Area:
    """The area of a guess [n, labels] about the labels y [n], or [n, c] about the answers y [n, c]."""
    found = [_binary_area(score, yes) for score, yes in questions(guess, y)]
    if not found:
        return Area(math.nan, np.zeros(len(y)))
    return Area(float(np.mean([one.value for one in found])), np.mean([one.influence for one in found], axis=0))


def difference(first: Area, second: Area, *, paired: bool) -> tuple[float, float]:
    """first - second and its standard error; `paired` areas are about the same records."""
    error = _error(first.influence - second.influence) if paired else math.hypot(first.error, second.error)
    return first.value - second.value, error


def _binary_area(score: Values, positive: NDArray[np.bool_]) -> Area:
    """The area for two labels; a record's influence is how far it moves the area, times the number of records."""
    from scipy.stats import rankdata

    up, down = score[positive], score[~positive]
    ranks = rankdata(np.concatenate([up, down]))
    n, k = len(up), len(down)
    above = (ranks[:n] - rankdata(up)) / k  # for each record of the label: the share of the others below it
    below = 1 - (ranks[n:] - rankdata(down)) / n  # for each other: the share of the label's records above it
    value = float(above.mean())
    influence = np.empty(n + k)
    influence[positive] = (above - value) * (n + k) / n
    influence[~positive] = (below - value) * (n + k) / k
    return Area(value, influence)


def _error(influence: Values) -> float:
    return float(np.sqrt(np.mean(influence**2) / len(influence)))


# probits of the false-positive rates at which a sampled head's curve is compared with a Gaussian one, and a margin for
# what lies between them; both curves are symmetric, so half of each is enough
_GRID = np.arange(-3.0, 0.01, 0.25)
_MARGIN = 1.01
_ROOT = 2.0**0.5


def true_mu(plan: PrivacyPlan) -> float:
    """An upper bound of the mu of all that the plan releases, for replace-one; infinity without a claim.

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
    """The largest area under the curve of any attack that has `guess` [n, labels] and sees one mu-GDP release.

    The guess is used as well as possible: by its likelihood ratio along the upper hull of its ROC curve. The release
    adds the likelihood ratio of a Gaussian that is shifted by mu, which is the most that Gaussian DP allows.
    """
    if math.isinf(mu):
        return 1.0
    found = [_binary_ceiling(score, yes, mu) for score, yes in questions(guess, y)]
    return float(np.mean(found)) if found else math.nan


def _binary_ceiling(score: NDArray[np.float64], positive: NDArray[np.bool_], mu: float) -> float:
    from scipy.special import ndtr
    from sklearn.isotonic import IsotonicRegression

    share = IsotonicRegression().fit_transform(score, positive.astype(np.float64))
    levels, where = np.unique(share, return_inverse=True)
    up = np.bincount(where[positive], minlength=len(levels)) / np.count_nonzero(positive)
    down = np.bincount(where[~positive], minlength=len(levels)) / np.count_nonzero(~positive)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(levels) - np.log1p(-levels)
        apart = ratio[:, None] - ratio[None, :]  # inf - inf: a level at which all records have one label
        apart[np.isnan(apart)] = 0.0
        odds = ndtr((apart + mu * mu) / (mu * _ROOT)) if mu > 0 else 0.5 + 0.5 * np.sign(apart)
    return float(up @ odds @ down)
