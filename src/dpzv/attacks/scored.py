"""The records by which attacks are scored: a public sample of those that took part in what was read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpzv.data.dataset import Dataset
from dpzv.rng import numpy_generator
from dpzv.terms import Task

__all__ = ["MOST_OTHERS", "MOST_SCORED", "Scored", "Truth", "sampled", "truth_of"]

MOST_SCORED = 20_000
"""Train records by which an attack is scored."""

MOST_OTHERS = 10_000
"""Records that were not part of the run, by which an attack is scored, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The labels that guesses are scored by, and of which attacks are told a few: int64, of `labels` kinds."""

    task: Task
    labels: int
    train: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Ids of train records and of test records, in their order."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]

    def of(self, truth: Truth) -> Truth:
        """The labels of these records."""
        return Truth(truth.task, truth.labels, truth.train[self.train], truth.test[self.test])


def truth_of(data: Dataset) -> Truth:
    """The labels of a data set; those that are numbers become whether they are above the median."""
    if data.task == "regression":
        middle = np.median(data.y_train)
        return Truth(data.task, 2, (data.y_train > middle).astype(np.int64), (data.y_test > middle).astype(np.int64))
    return Truth(data.task, max(2, data.n_classes), data.y_train, data.y_test)


def sampled(took: NDArray[np.int64], tests: NDArray[np.int64]) -> Scored:
    """At most `MOST_SCORED` of the train records `took` and `MOST_OTHERS` of the test records, the same every time."""

    def some(ids: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        if len(ids) <= most:
            return ids
        generator = numpy_generator("scored records")  # a format: it fixes which records are scored
        return np.sort(generator.choice(ids, most, replace=False))

    return Scored(some(took, MOST_SCORED), some(tests, MOST_OTHERS))
