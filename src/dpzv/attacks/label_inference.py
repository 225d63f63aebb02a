"""Labels from what came back: from means over batches, and from gradients of single records.

Each attack guesses the train records and, where it can, other records in their places, which were not part of the run.
Whatever it learns about those other records did not come from training on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpzv.attacks.guesswork import Known, halves
from dpzv.attacks.readings import Readings
from dpzv.attacks.replay import Coalition
from dpzv.attacks.scored import Scored

__all__ = ["Guess", "direction", "least_squares", "likelihood_ratio", "norm", "returned", "sign", "signs"]

Values = NDArray[np.float64]

NOISES = tuple(10.0**k for k in range(-4, 3))
"""Deviations that the errors of a stand-in may have, in units of that of the totals; the likeliest is taken."""

WEIGHTS = (0.0, *(10.0 ** (k / 2) for k in range(-6, 1)))
"""What the likelihood ratio may be multiplied with before it is added to what is known without the run."""


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """What an attack believes: [D, labels] for the train records, [D_test, labels] for others in their places."""

    train: Values
    unseen: Values | None


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """Gradients of the records `ids`: the mean over their rounds of the unit vector, of the signs, and of the norm.

    `took` says whose gradients came back at all; of all others there is nothing.
    """

    ids: NDArray[np.int64]
    unit: Values
    signs: Values
    norm: Values
    took: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The places [n] in readings at which some records stand: the reading, the place in its batch, and which record."""

    reading: NDArray[np.int64]
    place: NDArray[np.int64]
    record: NDArray[np.int64]

    @classmethod
    def of(cls, ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> Slots:
        """Where records `wanted`, which are sorted, stand in `ids` [R, B]; they are counted from 0 in their order."""
        reading, place = np.nonzero(np.isin(ids, wanted))
        return cls(reading, place, np.searchsorted(wanted, ids[reading, place]))

    def of_slots(self, values: NDArray[np.float32]) -> Values:
        """What `values` [R, B, n] has at these places."""
        return values[self.reading, self.place].astype(np.float64)


def sign(readings: Readings, D: int, D_test: int) -> Guess:
    """Adds up, for each label, what a record would have added to releases above and below their median."""
    side = np.sign(readings.total - np.median(readings.total))[:, None, None]

    def score(adds: NDArray[np.float32], ids: NDArray[np.int64], n: int) -> Values:
        parts = side * (adds - adds.mean(axis=2, keepdims=True))
        return _gathered(parts.reshape(-1, parts.shape[2]), ids.reshape(-1), n)

    return Guess(score(readings.adds, readings.ids, D), score(readings.twins, readings.ids % D_test, D_test))


def least_squares(readings: Readings, train: Values, unseen: Values) -> Guess:
    """Regularised least squares over all rounds for the probabilities of all labels, which start at `train`.

    `train` [D, n] and `unseen` [D_test, n] are log-probabilities without the run. The deviation of what the stand-in
    for the head gets wrong is the one under which the totals are likeliest.
    """
    from scipy.sparse import csr_matrix

    (R, B, n), prior, other = readings.adds.shape, np.exp(train), np.exp(unseen)

    def matrix(adds: NDArray[np.float32], ids: NDArray[np.int64], records: int) -> csr_matrix:
        columns = (ids[:, :, None] * n + np.arange(n)).reshape(-1)
        return csr_matrix((adds.reshape(-1), columns, np.arange(R + 1) * B * n), shape=(R, records * n))

    A, p = matrix(readings.adds, readings.ids, len(prior)), prior.reshape(-1)
    spread = p * (1 - p) + 1e-3
    left = readings.total - A @ p
    values, vectors = np.linalg.eigh((A.multiply(spread) @ A.T).toarray())
    turned, values = vectors.T @ left, np.maximum(values, 0.0)
    scale = float(np.mean(left**2))
    fits = []
    for share in NOISES:
        variance = values + readings.noise**2 + share**2 * scale
        fits.append((float(np.sum(turned**2 / variance + np.log(variance))), variance))
    alpha = vectors @ (turned / min(fits, key=lambda one: one[0])[1])
    q = other.reshape(-1)
    moved = q + (q * (1 - q) + 1e-3) * (matrix(readings.twins, readings.ids % len(other), len(other)).T @ alpha)
    return Guess((p + spread * (A.T @ alpha)).reshape(prior.shape), moved.reshape(other.shape))


def likelihood_ratio(readings: Readings, y: NDArray[np.int64], sample: Scored, train: Values, unseen: Values) -> Guess:
    """The log-likelihood of each label of one record of `sample`, where the labels `y` of all others are known.

    This is the adversary of the definition of differential privacy, and on a Gaussian the best test. `train` and
    `unseen` are log-probabilities without the run. Records that are not part of the run are taken to add what is
    expected of them. A stand-in for the head that is wrong is wrong in the same way in many rounds. So what it says has
    the weight under which the labels of other records are likeliest: those of the other half of `sample`.
    """
    ids, adds = readings.ids, readings.adds
    own = np.take_along_axis(adds, y[ids][:, :, None], axis=2)
    left = readings.total - own.sum(axis=(1, 2), dtype=np.float64)
    variance = max(float(np.mean(left**2)), 1e-12)

    def score(without: Values, adds: Values, slots: Slots, n: int) -> Values:
        missed = left[slots.reading][:, None] + without - adds
        return _gathered(-(missed**2) / (variance + variance), slots.record, n)

    at = Slots.of(ids, sample.train)
    seen = score(at.of_slots(own), at.of_slots(adds), at, len(train))
    at = Slots.of(ids, sample.test)
    twins = at.of_slots(readings.twins)
    expected = np.sum(np.exp(unseen)[at.record] * twins, axis=1, keepdims=True)
    other = score(expected, twins, at, len(unseen))
    labels, half = y[sample.train], halves(len(train))
    weight = np.where(half, _weight(train, seen, labels, ~half), _weight(train, seen, labels, half))
    overall = _weight(train, seen, labels, np.ones(len(train), np.bool_))
    # normalised: what all labels of a record have in common says nothing about which of them it has
    return Guess(_normalised(train + weight[:, None] * seen), _normalised(unseen + overall * other))


def _normalised(logs: Values) -> Values:
    """Log-probabilities [n, labels] from logarithms of what is proportional to them."""
    from scipy.special import log_softmax

    found: Values = log_softmax(logs, axis=1)
    return found


def _weight(prior: Values, seen: Values, y: NDArray[np.int64], among: NDArray[np.bool_]) -> float:
    """How much of `seen` [n, labels] to add to `prior`, so that the labels `y` of the records `among` are likeliest."""
    rows = np.flatnonzero(among)
    likely = [_normalised(prior[rows] + w * seen[rows])[np.arange(len(rows)), y[rows]].sum() for w in WEIGHTS]
    best: float = WEIGHTS[int(np.argmax(likely))]
    return best


def returned(coalition: Coalition, ids: NDArray[np.int64]) -> Returned:
    """What came back for the records `ids`, sorted, from a method that returns gradients of single records.

    It walks all turns.
    """
    sizes, n = {one.m: one.width for one in coalition.members}, len(ids)
    unit, signs = (np.zeros((n, coalition.width)) for _ in range(2))
    norms, turns = np.zeros(n), np.zeros(n)
    for turn in coalition.turns():
        asked = np.isin(turn.ids, ids)
        rows, columns = np.searchsorted(ids, turn.ids[asked]), coalition.columns[turn.m]
        g = turn.Delta.reshape(len(turn.ids), sizes[turn.m])[asked]
        length = np.linalg.norm(g, axis=1)
        unit[rows, columns] += g / np.maximum(length, 1e-12)[:, None]
        signs[rows, columns] += np.sign(g)
        norms[rows] += length
        turns[rows] += 1
    each = np.maximum(turns, 1)[:, None]
    return Returned(ids, unit / each, signs / each, norms / each[:, 0], turns > 0)


def norm(found: Returned, known: Known) -> Guess:
    """Of two labels, the rarer one has longer gradients; known records that took part say which one it is."""
    means = [found.norm[ids].mean() if len(ids) else 0.0 for ids in _by_label(found, known)]
    towards = found.norm * np.sign(means[1] - means[0])
    return Guess(np.stack([-towards, towards], axis=1), None)


def direction(found: Returned, known: Known) -> Guess:
    """How nearly a record's gradients point to where those of known records of each label point."""
    return Guess(_alike(found.unit, found, known), None)


def signs(found: Returned, known: Known) -> Guess:
    """How nearly the signs of a record's gradients are those of known records of each label."""
    return Guess(_alike(found.signs, found, known), None)


def _by_label(found: Returned, known: Known) -> list[NDArray[np.int64]]:
    """The places of the known records of each label that took part."""
    places = np.searchsorted(found.ids, known.ids)
    return [places[(known.y == label) & found.took[places]] for label in range(known.labels)]


def _alike(evidence: Values, found: Returned, known: Known) -> Values:
    """The cosine between each record's evidence [D, k] and the mean of known records of each label [D, labels]."""
    middle = evidence[found.took].mean(axis=0)
    means = [evidence[ids].mean(axis=0) if len(ids) else middle for ids in _by_label(found, known)]
    centres, apart = np.stack(means) - middle, evidence - middle
    lengths = np.linalg.norm(apart, axis=1)[:, None] * np.linalg.norm(centres, axis=1)
    cosines: Values = (apart @ centres.T) / np.maximum(lengths, 1e-12)
    return cosines


def _gathered(parts: NDArray[np.floating], ids: NDArray[np.int64], n: int) -> Values:
    """The sum of `parts` [slots, labels] by record [n, labels]."""
    return np.stack([np.bincount(ids, column, minlength=n) for column in parts.T], axis=1)
