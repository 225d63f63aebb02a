"""What a coalition can guess without the run: labels from its own features and the labels of a few records it knows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpzv.rng import numpy_generator

__all__ = ["Known", "classify", "cross_fitted", "draw", "halves"]

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The auxiliary records of an attack: `ids` of train records, and their labels `y`; there are n `labels`."""

    ids: NDArray[np.int64]
    y: NDArray[np.int64]
    labels: int

    def others(self, D: int) -> NDArray[np.int64]:
        """The train records whose labels have to be guessed."""
        return np.setdiff1d(np.arange(D), self.ids)


def draw(y: NDArray[np.int64], labels: int, each: int, number: int) -> Known:
    """Choose `each` known records of each label (at most half of them); every `number` gives another choice."""
    generator = numpy_generator("auxiliary records", each, number)  # a format: it fixes which records are known
    found = []
    for label in range(labels):
        ids = np.flatnonzero(y == label)
        found.append(generator.choice(ids, min(each, len(ids) // 2), replace=False))
    ids = np.sort(np.concatenate(found))
    return Known(ids, y[ids], labels)


def classify(
    x: NDArray[np.float32], y: NDArray[np.int64], asked: list[NDArray[np.float32]], labels: int
) -> list[Values]:
    """Log-probabilities [n, labels] for the records of each table in `asked`, from records `x` with labels `y`."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    if len(set(y.tolist())) < 2:
        return [np.zeros((len(one), labels)) for one in asked]
    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=1.0 / x.shape[1], max_iter=100).fit((x - mean) / scale, y)
    made = []
    for one in asked:
        full = np.full((len(one), labels), -20.0)
        # a feature that hardly varies among few known records may be huge elsewhere
        likely = model.predict_proba(np.clip((one - mean) / scale, -10, 10))
        full[:, model.classes_] = np.log(np.maximum(likely, 1e-8))
        made.append(full)
    return made


def halves(n: int) -> NDArray[np.bool_]:
    """Which of `n` records are in the first half; the stream's name is a format, which fixes them."""
    return numpy_generator("halves").random(n) < 0.5


def cross_fitted(x: NDArray[np.float32], y: NDArray[np.int64], labels: int) -> Values:
    """Log-probabilities [D, labels] for all records, each from the labels of the other half of the records."""
    half = halves(len(y))
    found = np.zeros((len(y), labels))
    for part in (half, ~half):
        (found[part],) = classify(x[~part], y[~part], [x[part]], labels)
    return found
