"""Labels from what came back: from means over batches, and from gradients of single records.

Each attack gives a guess for the train records, and where it can, one for other records that stood in their places
without being part of the run. What it knows of those is what it knows of everybody, and no leak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpzv.attacks.guesswork import Known
from dpzv.attacks.readings import Readings
from dpzv.attacks.replay import Coalition

__all__ = ["Guess", "Returned", "direction", "least_squares", "likelihood_ratio", "norm", "returned", "sign", "signs"]

Values = NDArray[np.float64]

NOISES = tuple(10.0**k for k in range(-4, 3))
"""Deviations of what the stand-in gets wrong, in units of that of the totals, of which the likeliest is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """What an attack believes: [D, labels] for the train records, [D_test, labels] for others in their places."""

    train: Values
    unseen: Values | None


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """Gradients of single records: the mean over their rounds of the unit vector, of the signs, and of the norm."""

    unit: Values
    signs: Values
    norm: Values


def sign(readings: Readings, D: int, D_test: int) -> Guess:
    """Adds up, for each label, what a record would have added to releases above and below their median."""
    side = np.sign(readings.total - np.median(readings.total))[:, None, None]

    def score(adds: NDArray[np.float32], ids: NDArray[np.int64], n: int) -> Values:
        return _gathered(side * (adds - adds.mean(axis=2, keepdims=True)), ids, n)

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


def likelihood_ratio(readings: Readings, y: NDArray[np.int64], train: Values, unseen: Values) -> Guess:
    """The log-likelihood of each label of one record, where the labels `y` of all others are known.

    This is the adversary of the definition of differential privacy, and on a Gaussian the best test. `train` and
    `unseen` are log-probabilities without the run. Records that are not part of the run are taken to add what is
    expected of them.
    """
    ids, adds = readings.ids, readings.adds
    own = np.take_along_axis(adds, y[ids][:, :, None], axis=2)
    left = readings.total - own.sum(axis=(1, 2), dtype=np.float64)
    variance = max(float(np.mean(left**2)), 1e-12)

    def score(without: NDArray[np.float32], adds: NDArray[np.float32], where: NDArray[np.int64], n: int) -> Values:
        return _gathered(-((left[:, None, None] + without - adds) ** 2) / (variance + variance), where, n)

    where = ids % len(unseen)
    expected = np.sum(np.exp(unseen)[where] * readings.twins, axis=2, keepdims=True)
    seen, other = score(own, adds, ids, len(train)), score(expected, readings.twins, where, len(unseen))
    return Guess(train + seen, unseen + other)


def returned(coalition: Coalition, D: int) -> Returned:
    """What came back for each record, from a method that returns gradients of single records; walks all turns."""
    sizes = {one.m: one.width for one in coalition.members}
    unit, signs = (np.zeros((D, coalition.width)) for _ in range(2))
    norms, turns = np.zeros(D), np.zeros(D)
    for turn in coalition.turns():
        g = turn.Delta.reshape(len(turn.ids), sizes[turn.m])
        length = np.linalg.norm(g, axis=1)
        columns = coalition.columns[turn.m]
        unit[turn.ids, columns] += g / np.maximum(length, 1e-12)[:, None]
        signs[turn.ids, columns] += np.sign(g)
        norms[turn.ids] += length
        turns[turn.ids] += 1
    each = np.maximum(turns, 1)[:, None]
    return Returned(unit / each, signs / each, norms / each[:, 0])


def norm(found: Returned, known: Known) -> Guess:
    """Of two labels, the rarer one has longer gradients; known records say which one it is."""
    means = [found.norm[known.ids[known.y == label]].mean() for label in (0, 1)]
    towards = found.norm * np.sign(means[1] - means[0])
    return Guess(np.stack([-towards, towards], axis=1), None)


def direction(found: Returned, known: Known) -> Guess:
    """How nearly a record's gradients point to where those of known records of each label point."""
    return Guess(_alike(found.unit, known), None)


def signs(found: Returned, known: Known) -> Guess:
    """The same with nothing but the signs of gradients."""
    return Guess(_alike(found.signs, known), None)


def _alike(evidence: Values, known: Known) -> Values:
    """The cosine between each record's evidence [D, k] and the mean of known records of each label [D, labels]."""
    middle = evidence.mean(axis=0)
    centres = np.stack([evidence[known.ids[known.y == label]].mean(axis=0) for label in range(known.labels)]) - middle
    apart = evidence - middle
    lengths = np.linalg.norm(apart, axis=1)[:, None] * np.linalg.norm(centres, axis=1)
    found: Values = (apart @ centres.T) / np.maximum(lengths, 1e-12)
    return found


def _gathered(parts: NDArray[np.floating], ids: NDArray[np.int64], n: int) -> Values:
    """The sum of `parts` [R, B, labels] by record [n, labels]."""
    found = np.zeros((n, parts.shape[2]))
    np.add.at(found, ids.reshape(-1), parts.reshape(-1, parts.shape[2]))
    return found
