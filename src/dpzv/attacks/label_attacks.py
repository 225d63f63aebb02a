"""The attacks on labels that fit a method, run by one coalition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.findings import Tried, area
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
from dpzv.attacks.readings import Readings, gives_gradients, is_read, read
from dpzv.attacks.replay import Coalition
from dpzv.attacks.scored import Scored, Truth, sampled
from dpzv.data.dataset import ServerRecords, outputs_of
from dpzv.models.losses import per_record_loss
from dpzv.runtime.server_head import first_head

__all__ = ["COMPLETIONS", "DRAWS", "Insight", "completion", "label_attacks", "ratio"]

COMPLETIONS = (1, 10, 40)
"""Labelled records a class that model completion is given."""

DRAWS = 5
"""How many choices of such records are tried."""

KNOWN = 10
"""Known records a class of the other attacks."""

Values = NDArray[np.float64]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Insight:
    """What a coalition knows of the records of `sample` after it has read its views.

    `own` are its features, `start` and `end` its rows before and after training, and `by_record` is what the releases
    say of each record by itself. Each has a table for train records and one for test records; the latter is `None`
    where the releases say nothing of them. `truth` has the labels of these records.
    """

    sample: Scored
    truth: Truth
    own: tuple[Rows, Rows]
    start: tuple[Rows, Rows]
    end: tuple[Rows, Rows]
    by_record: tuple[Values, Values | None]
    readings: Readings | None


def label_attacks(coalition: Coalition, truth: Truth, sigma_dp: float) -> tuple[list[tuple[str, list[Tried]]], Insight]:
    """Each attack's name with its tries, and the insight that `ratio`, `completion` and attacks on features need."""
    known = draw(truth.train, truth.labels, KNOWN, 0)
    method = coalition.members[0].view.config.train.method
    means = is_read(method) and not gives_gradients(method)
    if means and truth.task != "regression":
        return _from_means(coalition, truth, known, sigma_dp)
    return _from_gradients(coalition, truth, known)


def _from_gradients(coalition: Coalition, truth: Truth, known: Known) -> tuple[list[tuple[str, list[Tried]]], Insight]:
    """Attacks on gradients of single records.

    A regression whose method returns means, and a method whose answers are not read, have the insight and no attack.
    """
    sample = sampled(np.setdiff1d(coalition.took, known.ids), np.arange(len(truth.test)))
    own, start = _tables(coalition.own, sample), _tables(coalition.rows, sample)
    taught = coalition.own(known.ids), coalition.rows(known.ids)
    by_record, scored = np.zeros((len(sample.train), 0)), sample.of(truth)
    found: list[tuple[str, list[Tried]]] = []
    if not gives_gradients(coalition.members[0].view.config.train.method):
        for _ in coalition.turns():
            pass
    else:
        came = returned(coalition, np.union1d(sample.train, known.ids))
        asked = np.searchsorted(came.ids, sample.train)
        by_record = np.concatenate([came.unit, came.norm[:, None]], axis=1)[asked]
        guesses = {"direction": direction(came, known), "sign": signs(came, known)}
        if truth.labels == 2:
            guesses = {"norm": norm(came, known)} | guesses
        floor = _better(taught, (own, start), known, scored, np.arange(len(sample.train))).train
        found += [(name, [Tried(guess.train[asked], floor, scored.train)]) for name, guess in guesses.items()]
    end = _tables(coalition.rows, sample)
    return found, Insight(sample, scored, own, start, end, (by_record, None), None)


def _from_means(
    coalition: Coalition, truth: Truth, known: Known, sigma_dp: float
) -> tuple[list[tuple[str, list[Tried]]], Insight]:
    """Attacks on means over batches. All records of the batches are guessed, and some of them are scored."""
    own, start = (coalition.own(), coalition.own(test=True)), (coalition.start(), coalition.start(test=True))
    taught = own[0][known.ids], start[0][known.ids]
    floor = _better(taught, (own, start), known, truth, known.others(len(truth.train)))
    floor.train[known.ids] = -20.0
    floor.train[known.ids, known.y] = 0.0
    heads = _stand_ins(coalition, known, truth, start[0])
    chosen = _fitting(read(coalition, heads, per_record_loss(truth.task), truth.labels, sigma_dp), floor.train)
    took, D, D_test = np.unique(chosen.ids), len(truth.train), len(truth.test)
    sample = sampled(np.setdiff1d(took, known.ids), took[took < min(D, D_test)])
    scored = sample.of(truth)
    assert floor.unseen is not None
    solved = least_squares(chosen, floor.train, floor.unseen)
    assert solved.unseen is not None
    by_record = solved.train - np.exp(floor.train), solved.unseen - np.exp(floor.unseen)
    found = []
    for name, guess in (("sign", sign(chosen, D, D_test)), ("batch least squares", solved)):
        assert guess.unseen is not None
        tried = Tried(
            guess.train[sample.train],
            floor.train[sample.train],
            scored.train,
            guess.unseen[sample.test],
            scored.test,
        )
        found.append((name, [tried]))
    some = tuple((table[0][sample.train], table[1][sample.test]) for table in (own, start))
    end = _tables(coalition.rows, sample)
    of_sample = by_record[0][sample.train], by_record[1][sample.test]
    return found, Insight(sample, scored, some[0], some[1], end, of_sample, chosen)


def ratio(evidence: Insight, truth: Truth) -> Iterator[tuple[str, list[Tried]]]:
    """The likelihood ratio of one record's label for somebody who knows all other labels, where there are readings."""
    readings, scored, sample = evidence.readings, evidence.truth, evidence.sample
    if readings is not None:
        informed, elsewhere = _informed(evidence.own, evidence.start, scored)
        guess = likelihood_ratio(readings, truth.train, sample, informed, elsewhere)
        yield "likelihood ratio", [Tried(guess.train, informed, scored.train, guess.unseen, scored.test)]


def completion(evidence: Insight) -> Iterator[tuple[str, list[Tried]]]:
    """Model completion: a head on the rows of the trained networks, from few labelled records."""
    truth = evidence.truth
    tables = (evidence.own[0],), (evidence.start[0],)
    for each in COMPLETIONS:
        tries = []
        for number in range(DRAWS):
            known = draw(truth.train, truth.labels, each, number)
            others = known.others(len(truth.train))
            train, unseen = classify(evidence.end[0][known.ids], known.y, list(evidence.end), truth.labels)
            taught = evidence.own[0][known.ids], evidence.start[0][known.ids]
            floor = _better(taught, tables, known, truth, others).train
            tries.append(Tried(train[others], floor[others], truth.train[others], unseen, truth.test))
        yield f"model completion, {each} a class", tries


def _tables(rows: Callable[..., Rows], sample: Scored) -> tuple[Rows, Rows]:
    return rows(sample.train), rows(sample.test, test=True)


def _better(
    taught: tuple[Rows, Rows],
    tables: tuple[tuple[Rows, ...], tuple[Rows, ...]],
    known: Known,
    truth: Truth,
    others: NDArray[np.int64],
) -> Guess:
    """Log-probabilities without the run, from raw features or from networks as they started, whichever says more.

    `taught` are the features and the rows of the known records, `tables` those of the train records whose labels are in
    `truth`, and of test records if they are asked for. `others` are the train records on which both are compared.
    """
    made = [classify(x, known.y, list(asked), truth.labels) for x, asked in zip(taught, tables, strict=True)]
    best = max(made, key=lambda one: area(one[0][others], truth.train[others]).value)
    return Guess(best[0], best[1] if len(best) > 1 else None)


def _informed(own: tuple[Rows, Rows], start: tuple[Rows, Rows], truth: Truth) -> tuple[Values, Values]:
    """Log-probabilities without the run, for somebody who knows the labels of all records but the guessed one."""
    tried = [(cross_fitted(x[0], truth.train, truth.labels), x) for x in (own, start)]
    train, x = max(tried, key=lambda one: area(one[0], truth.train).value)
    (unseen,) = classify(x[0], truth.train, [x[1]], truth.labels)
    return train, unseen


def _stand_ins(coalition: Coalition, known: Known, truth: Truth, start: Rows) -> list[torch.nn.Module]:
    """Stand-ins for the server's head: its public start, and the same fitted to the known records."""
    config = coalition.members[0].view.config
    shares = np.bincount(known.y, minlength=truth.labels) / len(known.y) * len(truth.train)
    counts = tuple(shares.tolist()) if config.head.base == "count" else ()
    nothing, outputs = np.zeros(len(truth.train), np.int64), outputs_of(truth.task, truth.labels)
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
