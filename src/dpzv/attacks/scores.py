"""How good guesses are: the area under the ROC curve, its error, and that of a difference (DeLong et al., 1988).

A guess is a table [n, labels]: how much an attack believes in each label of each record. For several labels the area
is the mean over labels of "this one against all others". A guess about several yes-or-no questions [n, c] is scored by
answers [n, c]; the area is the mean over the questions. 1/2 is blind guessing, 1 is certainty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Area", "area", "difference", "questions"]

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
    """A guess as yes-or-no questions: a number [n] and the answer [n] for each; those of one answer are left out."""
    if y.ndim == 2:
        asked = [(guess[:, j], y[:, j] == 1) for j in range(y.shape[1])]
    elif guess.shape[1] == 2:
        asked = [(guess[:, 1] - guess[:, 0], y == 1)]
    else:
        asked = [(guess[:, label], y == label) for label in range(guess.shape[1])]
    return [(score, yes) for score, yes in asked if 1 < np.count_nonzero(yes) < len(y) - 1]


def area(guess: Values, y: NDArray[np.int64]) -> Area:
    """The area of a guess [n, labels] about the labels y [n], or [n, c] about the answers y [n, c]."""
    found = [_binary(score, yes) for score, yes in questions(guess, y)]
    if not found:
        return Area(math.nan, np.zeros(len(y)))
    return Area(float(np.mean([one.value for one in found])), np.mean([one.influence for one in found], axis=0))


def difference(first: Area, second: Area, *, paired: bool) -> tuple[float, float]:
    """first - second and its standard error; `paired` areas are about the same records."""
    error = _error(first.influence - second.influence) if paired else math.hypot(first.error, second.error)
    return first.value - second.value, error


def _binary(score: Values, positive: NDArray[np.bool_]) -> Area:
    """The area for two labels; a record's influence is n times the change of the area that it stands for."""
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
