"""Attacks in two worlds that differ in one record; all but `filled_rows` play a few rounds and repeat the releases.

Every strategy is a plain function of a target and a number `n` of runs per world. Its scores are larger in the second
world ("high") than in the first ("low") if it has found anything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.canary import LABELS, probe, rows
from dpzv.attacks.lower_bound import Evidence
from dpzv.attacks.target import Machine, Target, Transcript
from dpzv.config import HeadSection
from dpzv.errors import PeerError, PrivacyRefused
from dpzv.methods.dpsgd import clipped_gradient_sum
from dpzv.models.head import Head
from dpzv.privacy.accountant import fold
from dpzv.privacy.events import Releases
from dpzv.privacy.plan import PrivacyPlan
from dpzv.protocol.messages import Release

__all__ = [
    "FEW",
    "both_worlds",
    "canary_at_the_clip",
    "filled_rows",
    "huge_embedding",
    "last_direction",
    "matched_filter",
    "negative",
    "of_releases",
    "repeated_id",
    "shared_scale",
]

Seen = TypeVar("Seen")

FEW = 4
"""Records per batch in attacks where only the canary's own term matters."""

MANY = 64
"""Records per batch in attacks where one record may move the terms of the others, or take their places."""

BATCHES, ROW = 4, 32
"""How many batches of records the table of `filled_rows` has, and the canary's row in it."""

OUTLIER = 3e4
"""A number far above any embedding that half precision can still carry."""


def matched_filter(target: Target, n: int) -> Evidence:
    """A canary at the clip in every batch it may be in; the likelihood ratio is the sum of its releases.

    Its K differences are equal in every message, so each release is projected on the direction of equal numbers.
    """
    low, high, plan = both_worlds(target, n, FEW, lambda machine, world: canary_at_the_clip(machine, world, n))
    return of_releases(plan, low.common.sum(axis=1), high.common.sum(axis=1), 0.0)


def last_direction(target: Target, n: int) -> Evidence:
    """The same canary with one difference that is not 0, the last; the other numbers must not tell its noise.

    Where directions share their noise, the mean of the others is the noise of the last one.
    """

    def play(machine: Machine, world: int) -> NDArray[np.float64]:
        Delta = canary_at_the_clip(machine, world, n, last=True).Delta
        scores: NDArray[np.float64] = (Delta[:, :, -1] - Delta[:, :, :-1].mean(axis=2)).sum(axis=1)
        return scores

    low, high, plan = both_worlds(target, n, FEW, play)
    return of_releases(plan, low, high, 0.0)


def canary_at_the_clip(machine: Machine, world: int, n: int, *, last: bool = False) -> Transcript:
    """What all devices together see, `n` times, of a record whose label makes its terms -C (world 0) or +C (1).

    It is in one batch of every device, whose other records contribute 0. With K directions its vectors have norm
    C*sqrt(K): the K differences are equal, or (`last`) all but the last are 0.
    """
    canary = int(machine.ids(1, 0)[0])
    machine.run.server.y_train[canary] = LABELS[world]
    played = []
    for m in range(1, machine.plan.M + 1):
        position = machine.turn(m, canary)
        h = rows(machine.ids(m, position), canary, probe(machine, m, record=canary))
        pending, release = machine.play(m, position, h, -h, last=last)
        machine.run.server.accept(release)
        played.append(pending)
    return machine.repeat(played, n)


def negative(target: Target, n: int) -> Evidence:
    """Strongly negative differences: beyond the clip there must be nothing.

    The threshold is eight standard deviations beyond what a two-sided clip lets through.
    """

    def play(machine: Machine, world: int) -> NDArray[np.float64]:
        ids, plan = machine.ids(1, 0), machine.plan
        machine.run.server.y_train[ids[0]] = LABELS[1 - world]
        h = rows(ids, int(ids[0]), probe(machine, 1, least=32 * (plan.clip + plan.B * plan.sigma_dp)))
        pending, _ = machine.play(1, 0, h, -h)
        return -machine.repeat([pending], n).common[:, 0]

    low, high, plan = both_worlds(target, n, FEW, play)
    return of_releases(plan, low, high, plan.clip / plan.B + 8 * plan.sigma_dp)


def repeated_id(target: Target, n: int) -> Evidence:
    """A batch in which the canary stands alone, or more than once.

    A message of one record is tried, and then the canary's batch twice; the batch is the one with the most repetitions
    of one id among the device's first `MANY`. Messages that the server refuses are not used.
    """

    def play(machine: Machine, world: int) -> NDArray[np.float64]:
        canary, position = _most_repeated(machine)
        machine.run.expect(1, position)
        machine.run.server.y_train[canary] = LABELS[world]
        h = probe(machine, 1)
        whole = rows(machine.ids(1, position), canary, h)
        played = []
        for message in (h[None], whole, whole):
            try:
                pending, release = machine.play(1, position, message, -message)
            except (PeerError, PrivacyRefused):
                continue
            machine.run.server.accept(release)
            played.append(pending)
            if len(message) == 1:  # a batch of the canary alone reveals the most, so nothing else is tried
                break
        scores: NDArray[np.float64] = machine.repeat(played, n).common.sum(axis=1)
        return scores

    low, high, plan = both_worlds(target, 2 * n, MANY, play)  # a run may have two rounds
    return of_releases(plan, low, high, 0.0)


def shared_scale(target: Target, n: int) -> Evidence:
    """One outlier among ordinary rows: its size must not move the terms of the others.

    All others are a little beyond the clip, so at -C. The canary's embeddings are 0 in the first world; in the second
    they are outliers, and so are their slopes. The threshold is four standard deviations above -C, or -C/2.
    """

    def play(machine: Machine, world: int) -> NDArray[np.float64]:
        ids, h = machine.ids(1, 0), probe(machine, 1, lasting=False)
        own = torch.full_like(h, world * OUTLIER)
        pending, _ = machine.play(1, 0, rows(ids, int(ids[0]), own, h), rows(ids, int(ids[0]), -own, -h))
        return machine.repeat([pending], n).common[:, 0]

    low, high, plan = both_worlds(target, n, MANY, play)
    return of_releases(plan, low, high, min(4 * plan.sigma_dp - plan.clip, -plan.clip / 2))


def huge_embedding(target: Target, n: int) -> Evidence:
    """A canary with a huge embedding in round 1, a batch without it in round 2: w_0 must not have learnt its label.

    Both worlds go on with the same first release, since the claim holds for every history; what still differs in
    round 2 came through w_0. (Steps of a dp-sgd head count as released themselves: `filled_rows` looks at them.)
    """
    history: list[Release] = []

    def play(machine: Machine, world: int) -> NDArray[np.float64]:
        ids, h = machine.ids(1, 0), probe(machine, 1)
        machine.run.server.y_train[ids[0]] = LABELS[world]
        huge = rows(ids, int(ids[0]), h * (OUTLIER / h.abs().max()))
        history.append(machine.play(1, 0, huge, huge)[1])
        machine.run.server.accept(history[0])
        ordinary = h.repeat(machine.plan.B, 1)
        pending, _ = machine.play(1, 1, ordinary, torch.zeros_like(ordinary))
        return machine.repeat([pending], n).common[:, 0]

    low, high, plan = both_worlds(target, n, MANY, play)
    return of_releases(plan, low, high, -plan.clip / 2)


def filled_rows(target: Target, n: int) -> Evidence:
    """A table in which only the canary's row is filled: it must be drawn no more often than any other.

    The auditor is given the noisy sum of every step of a dp-sgd head, which the account treats as released, and asks
    whether the sums lie nearer to the canary's clipped gradients under its first or under its second label. Every run
    has a server and a gate of its own.
    """
    with target.machine(B=MANY, batches=BATCHES, rounds=0) as machine:
        h, plan = probe(machine, 1), machine.plan
    scores = np.empty((len(LABELS), n))
    for world in range(len(LABELS)):
        for j in range(n):
            with target.machine(B=MANY, batches=BATCHES, rounds=0) as machine:
                machine.fill(1, ROW, h)
                machine.run.server.y_train[ROW] = LABELS[world]
                scores[world, j] = _score(machine, target.config.head)
    return Evidence(scores[0], scores[1], 0.0, plan.cost, plan.delta_dp, plan.epsilon_replace_one)


def _score(machine: Machine, head: HeadSection) -> float:
    """Where the noisy sums lie between the two gradients at the w_0 of each step: above 0 is nearer to the second.

    All empty rows have the same gradient. Only the direction at a right angle to it is looked at, so the empty rows do
    not count, however many were drawn.
    """
    row = machine.run.server.table.h[ROW : ROW + 1]
    score, before = 0.0, torch.zeros(())
    for _ in range(machine.run.gate.head_steps(0)):
        first, second = (_gradient(machine, row, label, head.C_0) for label in LABELS)
        others = _gradient(machine, torch.zeros_like(row), LABELS[0], head.C_0)
        machine.run.server.train_head(1)
        # the velocity is a running sum of noisy sums over the public size of the batch
        velocity = _vector(machine.run.server.method.head_rule.velocity)
        noisy = (velocity - head.momentum * before) * machine.plan.head_batch
        apart = second - first
        apart -= others * (apart @ others) / (others @ others)
        score += float((noisy - (first + second) / 2) @ apart)
        before = velocity
    return score


def _gradient(machine: Machine, row: torch.Tensor, label: int, C_0: float) -> torch.Tensor:
    """The clipped gradient of a record with this `row` [1, k] and label at the present w_0."""
    rule = machine.run.server.method
    assert isinstance(rule.head, Head)
    return _vector(clipped_gradient_sum(rule.head, row, torch.tensor([label]), rule.loss, C_0))


def _vector(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


def both_worlds(target: Target, n: int, B: int, play: Callable[[Machine, int], Seen]) -> tuple[Seen, Seen, PrivacyPlan]:
    """What `play(machine, world)` saw in world 0 and in world 1, and the plan of both.

    There are batches of B records for `n` repetitions and two rounds of each device, and no record is twice in the
    batches of one device. Both worlds begin with the head of the first: where labels were counted with noise, two draws
    would tell the worlds apart, and not the record.
    """
    batches, seen, start = n + 2, [], None
    for world in range(2):
        with target.machine(B=B, batches=batches, rounds=target.M * batches) as machine:
            head = machine.run.server.method.head
            start = start or copy.deepcopy(head.state_dict())
            head.load_state_dict(start)
            seen.append(play(machine, world))
            plan = machine.plan
    return seen[0], seen[1], plan


def of_releases(plan: PrivacyPlan, low: NDArray[np.float64], high: NDArray[np.float64], threshold: float) -> Evidence:
    """Scores computed from releases alone, against what the plan claims for them."""
    cost = fold([Releases(cap=plan.cap, distance=0.0)])
    return Evidence(low, high, threshold, cost, plan.delta_dp, plan.epsilon_replace_one)


def _most_repeated(machine: Machine) -> tuple[int, int]:
    """The record that stands most often in one of the first batches of device 1, and that batch's position."""
    most, canary, where = 0, 0, 0
    for position in range(MANY):
        batch = machine.ids(1, position)
        _, first, counts = np.unique(batch, return_index=True, return_counts=True)
        if counts.max() > most:  # of several such records, take the first in the batch
            most, canary, where = int(counts.max()), int(batch[first[counts == counts.max()].min()]), position
    return canary, where
