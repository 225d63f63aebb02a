"""The attacks on labels that fit a method, run by one coalition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.findings import Tried
from dpzv.attacks.guesswork import Known, classify, cross_fitted, draw
from dpzv.attacks.label_inference import (
    Guess,
    direction,
    least_squares,
    likelihood_ratio,
    norm,
    returned,
    sign,
    signs,
)
from dpzv.attacks.readings import READS, Readings, read
from dpzv.attacks.replay import Coalition
from dpzv.attacks.scores import area
from dpzv.data.dataset import ServerRecords
from dpzv.models.losses import per_record_loss
from dpzv.runtime.server_head import first_head
from dpzv.terms import Task

__all__ = ["COMPLETIONS", "DRAWS", "Insight", "Truth", "completion", "label_attacks", "ratio"]

COMPLETIONS = (1, 10, 40)
"""Labelled records a class that model completion is given."""

DRAWS = 5
"""How many choices of such records are tried."""

KNOWN = 10
"""Known records a class of the other attacks."""

Values = NDArray[np.float64]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The labels that guesses are scored by, and of which attacks are told a few: int64, of `labels` kinds."""

    task: Task
    labels: int
    train: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Insight:
    """What a coalition has after it has read its views, of train records and of others: features, rows as it started
    and ended, and what the releases say of each record by itself; of others `None` if they say nothing.
    """

    own: tuple[Rows, Rows]
    start: tuple[Rows, Rows]
    end: tuple[Rows, Rows]
    by_record: tuple[Values, Values | None]
    readings: Readings | None


def label_attacks(coalition: Coalition, truth: Truth, sigma_dp: float) -> tuple[list[tuple[str, list[Tried]]], Insight]:
    """Each attack's name with its tries, and the evidence that attacks on features go on with.

    The likelihood ratio and model completion, which need that evidence only, are not among them.
    """
    own = coalition.own(), coalition.own(test=True)
    start = coalition.rows(), coalition.rows(test=True)
    known = draw(truth.train, truth.labels, KNOWN, 0)
    floor = _floor(own, start, known, truth)
    found: list[tuple[str, list[Tried]]] = []
    D, D_test = len(truth.train), len(truth.test)
    method = coalition.members[0].view.config.train.method
    by_record: tuple[Values, Values | None] = np.zeros((D, 0)), None
    chosen: Readings | None = None
    if method not in READS:
        came = returned(coalition, D)
        by_record = np.concatenate([came.unit, came.norm[:, None]], axis=1), None
        guesses = {"direction": direction(came, known), "sign": signs(came, known)}
        if truth.labels == 2:
            guesses = {"norm": norm(came, known)} | guesses
        found += [(name, [_tried(guess, floor.train, known, truth)]) for name, guess in guesses.items()]
    elif truth.task != "regression":
        heads = _stand_ins(coalition, known, truth, start[0])
        chosen = _fitting(read(coalition, heads, per_record_loss(truth.task), truth.labels, sigma_dp), floor.train)
        assert floor.unseen is not None
        took = np.unique(chosen.ids)
        solved = least_squares(chosen, floor.train, floor.unseen)
        assert solved.unseen is not None
        by_record = solved.train - np.exp(floor.train), solved.unseen - np.exp(floor.unseen)
        found.append(("sign", [_tried(sign(chosen, D, D_test), floor.train, known, truth, took)]))
        found.append(("batch least squares", [_tried(solved, floor.train, known, truth, took)]))
    else:
        for _ in coalition.turns():
            pass
    return found, Insight(own, start, (coalition.rows(), coalition.rows(test=True)), by_record, chosen)


def ratio(evidence: Insight, truth: Truth) -> Iterator[tuple[str, list[Tried]]]:
    """The likelihood ratio of one record's label for somebody who knows all other labels, where there are readings."""
    readings = evidence.readings
    if readings is not None:
        informed, elsewhere = _informed(evidence.own, evidence.start, truth)
        guess = likelihood_ratio(readings, truth.train, informed, elsewhere)
        nobody = Known(np.zeros(0, np.int64), np.zeros(0, np.int64), truth.labels)
        yield "likelihood ratio", [_tried(guess, informed, nobody, truth, np.unique(readings.ids))]


def completion(evidence: Insight, truth: Truth) -> Iterator[tuple[str, list[Tried]]]:
    """Model completion: a head on the rows of the trained networks, from few labelled records."""
    for each in COMPLETIONS:
        tries = []
        for number in range(DRAWS):
            known = draw(truth.train, truth.labels, each, number)
            train, unseen = classify(evidence.end[0][known.ids], known.y, list(evidence.end), truth.labels)
            floor = _floor(evidence.own, evidence.start, known, truth).train
            tries.append(_tried(Guess(train, unseen), floor, known, truth))
        yield f"model completion, {each} a class", tries


def _floor(own: tuple[Rows, Rows], start: tuple[Rows, Rows], known: Known, truth: Truth) -> Guess:
    """Log-probabilities without the run, from raw features or from networks as they started, whichever says more.

    Known records are certain.
    """
    others = known.others(len(truth.train))
    tried = [classify(x[0][known.ids], known.y, list(x), truth.labels) for x in (own, start)]
    train, unseen = max(tried, key=lambda one: area(one[0][others], truth.train[others]).value)
    train[known.ids] = -20.0
    train[known.ids, known.y] = 0.0
    return Guess(train, unseen)


def _informed(own: tuple[Rows, Rows], start: tuple[Rows, Rows], truth: Truth) -> tuple[Values, Values]:
    """The same for somebody who knows the labels of all other records."""
    tried = [(cross_fitted(x[0], truth.train, truth.labels), x) for x in (own, start)]
    train, x = max(tried, key=lambda one: area(one[0], truth.train).value)
    (unseen,) = classify(x[0], truth.train, [x[1]], truth.labels)
    return train, unseen


def _tried(guess: Guess, floor: Values, known: Known, truth: Truth, took: NDArray[np.int64] | None = None) -> Tried:
    """Scored on the records whose labels were not given, and which took part in what was read (`took`)."""
    others = known.others(len(truth.train))
    both = min(len(truth.train), len(truth.test))
    unseen = np.arange(both if took is not None else len(truth.test))
    if took is not None:
        others, unseen = np.intersect1d(others, took), np.intersect1d(unseen, took)
    elsewhere = None if guess.unseen is None else guess.unseen[unseen]
    return Tried(guess.train[others], floor[others], truth.train[others], elsewhere, truth.test[unseen])


def _stand_ins(coalition: Coalition, known: Known, truth: Truth, start: Rows) -> list[torch.nn.Module]:
    """Stand-ins for the server's head: its public start, and the same fitted to the known records."""
    config = coalition.members[0].view.config
    shares = np.bincount(known.y, minlength=truth.labels) / len(known.y) * len(truth.train)
    counts = tuple(shares.tolist()) if config.head.base == "count" else ()
    outputs = truth.labels if truth.task == "classes" else 1
    nothing = np.zeros(len(truth.train), np.int64)
    records = ServerRecords("attack", truth.task, outputs, nothing, nothing[:1], "attack")
    heads: list[torch.nn.Module] = [first_head(config, records, coalition.width, counts)]
    if any(True for _ in heads[0].parameters()):
        fitted = first_head(config, records, coalition.width, counts)
        _fit(fitted, torch.from_numpy(start[known.ids]), torch.from_numpy(known.y), per_record_loss(truth.task))
        heads.append(fitted)
    return heads


def _fit(
    head: torch.nn.Module,
    rows: torch.Tensor,
    y: torch.Tensor,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    steps = torch.optim.Adam(head.parameters(), lr=1e-2, weight_decay=1e-3)
    for _ in range(100):
        steps.zero_grad()
        loss(head(rows), y).mean().backward()  # type: ignore[no-untyped-call]
        steps.step()


def _fitting(readings: list[Readings], guess: Values) -> Readings:
    """The readings whose stand-in comes nearest to the totals, if every label is what `guess` expects."""

    def missed(one: Readings) -> float:
        expected = np.einsum("rbn,rbn->r", np.exp(guess)[one.ids], one.adds)
        return float(np.mean((one.total - expected) ** 2))

    return min(readings, key=missed)
