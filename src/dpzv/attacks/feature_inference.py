"""Another device's features: from a coalition's view of the training, from predictions, and from all that is sent.

Auxiliary records, whose features are known, teach a model from what is seen to the features; all others are guessed.
A guess is scored by whether it tells which records are above the median of a column.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.findings import Tried
from dpzv.attacks.label_attacks import DRAWS, Insight
from dpzv.attacks.replay import Member
from dpzv.rng import numpy_generator, torch_generator

__all__ = ["explains", "from_predictions", "from_training", "generated", "regressed", "sent_to_server"]

Rows = NDArray[np.float32]
Values = NDArray[np.float64]

Model = Callable[[Rows, Rows, Rows], Values]
"""From what is seen of known records, their features, and what is seen of others, to the features of these."""

AUXILIARY = 400
"""Records whose features are known, at most a quarter of all."""

COLUMNS = 12
"""Columns that are guessed: those that vary most among the known records."""

RARE = 0.05
"""A column with a smaller share of records above its median is not guessed: a few records would decide its score."""

SEEN = 8
"""Columns of what is seen that the generative model takes."""

UPLOADS = (0, 1, 2, 4, 8, 16, 32)
"""Numbers of uploads of a record after which it is measured how much the server could rebuild."""

SAMPLE = 200
"""Records that are rebuilt where equations are solved."""

TAUGHT = 2000
"""Records that are rebuilt, and that teach, where a model is taught."""


def from_training(evidence: Insight, x: torch.Tensor, x_test: torch.Tensor) -> Iterator[tuple[str, list[Tried]]]:
    """The features `x` of a device outside the coalition, by regression and by a generative model."""
    train, unseen = evidence.by_record
    seen = np.concatenate([evidence.own[0], evidence.end[0], train.astype(np.float32)], axis=1)
    others = None
    if unseen is not None:
        others = np.concatenate([evidence.own[1], evidence.end[1], unseen.astype(np.float32)], axis=1)
    for name, model in (("regression", regressed), ("generative", generated)):
        tables = seen, evidence.own[0], _plain(x), others, _plain(x_test)
        yield name, [_one(model, *tables, number) for number in range(DRAWS)]


def from_predictions(own: Rows, outputs: Rows, x: torch.Tensor) -> list[Tried]:
    """The features `x` of a device outside the coalition, by regression from a head's outputs that it was given."""
    tables = np.concatenate([own, outputs], axis=1), own, _plain(x), None, _plain(x)
    return [_one(regressed, *tables, number) for number in range(DRAWS)]


def _one(model: Model, seen: Rows, own: Rows, x: Rows, others: Rows | None, x_test: Rows, number: int = 0) -> Tried:
    known = _auxiliary(len(x), number)
    rest = np.setdiff1d(np.arange(len(x)), known)
    columns = _varied(x[known])
    middle = np.median(x[known][:, columns], axis=0)
    guess, floor = (model(table[known], x[known][:, columns], table[rest]) for table in (seen, own))
    y = (x[rest][:, columns] > middle).astype(np.int64)
    if others is None:
        return Tried(guess, floor, y)
    elsewhere = model(seen[known], x[known][:, columns], others)
    return Tried(guess, floor, y, elsewhere, (x_test[:, columns] > middle).astype(np.int64))


def _varied(x: Rows) -> NDArray[np.int64]:
    """The columns of `x` [n, d] that are guessed: those that vary most, if enough records are above their median."""
    above = np.mean(x > np.median(x, axis=0), axis=0)
    order = np.argsort(-x.std(axis=0), kind="stable")
    order = order[x[:, order].std(axis=0) > 0]
    often = order[above[order] >= RARE]
    found: NDArray[np.int64] = (often if len(often) else order)[:COLUMNS]
    return found


def _auxiliary(n: int, number: int = 0) -> NDArray[np.int64]:
    """Which of `n` records have known features; the stream's name is a format, which fixes them."""
    found: NDArray[np.int64] = numpy_generator("auxiliary features", number).permutation(n)[: min(AUXILIARY, n // 4)]
    return found


def regressed(x: Rows, y: Rows, asked: Rows) -> Values:
    """Ridge regression from `x` to `y`, at `asked`; its strength is chosen by leaving records out."""
    model, mean, scale = _ridge(x, y)
    found: Values = model.predict(np.clip((asked - mean) / scale, -10, 10)).reshape(len(asked), -1)
    return found


def _ridge(x: Rows, y: Rows) -> tuple[Any, Rows, Rows]:
    """The regression, and the mean and the scale of the columns that it takes."""
    from sklearn.linear_model import RidgeCV

    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    return RidgeCV(alphas=[10.0**k for k in range(-1, 5)]).fit((x - mean) / scale, y), mean, scale


def generated(x: Rows, y: Rows, asked: Rows) -> Values:
    """A mixture of Gaussians over what is seen and what is asked for: the mean of the second given the first.

    Of what is seen it takes the columns that are correlated most with what is asked for.
    """
    from scipy.special import softmax
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    given, places = (np.clip((one - mean) / scale, -10, 10) for one in (x, asked))
    centred = (y - y.mean(axis=0)) / np.maximum(y.std(axis=0), 1e-6)
    telling = np.argsort(-np.abs(given.T @ centred).max(axis=1), kind="stable")[:SEEN]
    given, places, k = given[:, telling], places[:, telling], len(telling)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture = GaussianMixture(3, reg_covar=1e-2, random_state=0).fit(np.concatenate([given, y], axis=1))
    logs, means = [], []
    for weight, centre, spread in zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True):
        apart = places - centre[:k]
        solved = np.linalg.solve(spread[:k, :k], apart.T).T
        logs.append(np.log(weight) - (np.sum(apart * solved, axis=1) + np.linalg.slogdet(spread[:k, :k])[1]) / 2)
        means.append(centre[k:] + solved @ spread[:k, k:])
    shares = softmax(np.stack(logs), axis=0)
    found: Values = np.einsum("cn,cnj->nj", shares, np.stack(means))
    return found


def sent_to_server(member: Member) -> Iterator[tuple[int, Tried]]:
    """What the server could rebuild of a device's features, after some uploads of each record beside the first fill.

    Starts, directions and answers are no secret from the server, so it knows the device's weights in every round. If
    the device's network is linear, every number that it sends is a linear equation in a record's features, and no
    auxiliary record is needed. For other networks auxiliary records teach a model, from as many of the uploads as
    explain them best.
    """
    x = _plain(member.view.x_train)
    linear = _is_linear(member)
    chosen = member.first[: SAMPLE if linear else TAUGHT].copy()  # the first batch: no record takes part more often
    place = {int(i): n for n, i in enumerate(chosen)}
    middle = np.median(x, axis=0)
    columns = np.argsort(-x.std(axis=0), kind="stable")[:COLUMNS]
    y = (x[chosen][:, columns] > middle[columns]).astype(np.int64)
    none = np.zeros(0, np.float32), np.zeros((x.shape[1], 0), np.float32)
    rows, units = member.rows(member.view.x_train[chosen]), _at_units(member, None) if linear else none
    told: list[list[tuple[Rows, tuple[Rows, Rows]]]] = [[(row, units)] for row in rows]
    for turn in member.turns():
        slopes = np.concatenate(_stable(turn.h, member.lam), axis=1)
        units = _at_units(member, turn.position) if linear else none
        for row, i in enumerate(turn.ids.tolist()):
            if i in place and len(told[place[i]]) <= UPLOADS[-1]:
                told[place[i]].append((slopes[row], units))
    least = min(len(one) for one in told) - 1
    tables: list[Rows] = []
    for uploads in (some for some in UPLOADS if some <= least):
        if linear:
            found = np.stack([_solved(one[: uploads + 1], x.shape[1]) for one in told])[:, columns]
            yield uploads, Tried(found, np.zeros_like(found), y)
        else:
            tables.append(np.stack([np.concatenate([sent for sent, _ in one[: uploads + 1]]) for one in told]))
            seen = max(tables, key=lambda table: explains(table, x[chosen]))
            yield uploads, _one(regressed, seen, np.zeros((len(chosen), 1), np.float32), x[chosen], None, x)


def explains(seen: Rows, x: Rows) -> float:
    """How well what was sent predicts the known records, each left out in turn; columns that say nothing lower it."""
    known = _auxiliary(len(x))
    scale = np.maximum(x[known].std(axis=0), 1e-6)
    telling = scale > 1e-6
    return float(_ridge(seen[known], (x[known] / scale)[:, telling])[0].best_score_)


def _is_linear(member: Member) -> bool:
    """Whether the device's network is linear (with an intercept) in plain columns; it is tried at random points."""
    x = member.view.x_train
    if x.dtype != torch.float32 or x.ndim != 2:
        return False
    a, b = torch.randn(2, 8, x.shape[1], generator=torch_generator("straight line"))
    both, first, second, nothing = (member.rows(point) for point in (a + b, a, b, 0.0 * a))
    return bool(np.allclose(both - first, second - nothing, rtol=1e-3, atol=1e-4))


def _at_units(member: Member, position: int | None) -> tuple[Rows, Rows]:
    """What the device sends for a record of zeros [k], and what a 1 in each column adds to it [d, k].

    `position` is one of its schedule; `None` is the first fill.
    """
    x = member.view.x_train
    points = torch.cat([torch.zeros(1, x.shape[1]), torch.eye(x.shape[1])])
    if position is None:
        sent = member.rows(points)
    else:
        sent = np.concatenate(_stable(member.sent_for(points, position), member.lam), axis=1)
    return sent[0], sent[1:] - sent[0]


def _stable(h: tuple[Rows, ...], lam: float) -> list[Rows]:
    """The first of several embeddings, and how far the others are from it in units of lam."""
    return [h[0], *((one - h[0]) / lam for one in h[1:])]


def _solved(told: list[tuple[Rows, tuple[Rows, Rows]]], d: int) -> Values:
    """The features [d] that explain best what was sent."""
    A = np.concatenate([columns.T for _, (_, columns) in told]).astype(np.float64)
    b = np.concatenate([sent - nothing for sent, (nothing, _) in told])
    found: Values = np.linalg.solve(A.T @ A + 1e-6 * np.eye(d), A.T @ b)
    return found


def _plain(x: torch.Tensor) -> Rows:
    found: Rows = x.float().numpy()
    return found
