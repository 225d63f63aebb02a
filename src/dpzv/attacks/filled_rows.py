"""`filled-rows`: the steps of a dp-sgd head, which the account treats as released."""

from __future__ import annotations

import numpy as np
import torch

from dpzv.attacks.bound import Evidence
from dpzv.attacks.canary import LABELS, probe
from dpzv.attacks.target import Machine, Target
from dpzv.config import HeadSection
from dpzv.methods.dpsgd import clipped_gradient_sum
from dpzv.models.head import Head

__all__ = ["filled_rows"]

B, BATCHES, CANARY = 64, 4, 32


def filled_rows(target: Target, n: int) -> Evidence:
    """A table in which only the canary's row is filled: it must be drawn no more often than any other.

    The auditor is given the noisy sum of every head step, and asks whether they lie nearer to the canary's clipped
    gradients under its first or under its second label. Every run has a server and a gate of its own.
    """
    with target.machine(B=B, batches=BATCHES, rounds=0) as machine:
        h, plan = probe(machine, 1), machine.plan
    scores = np.empty((len(LABELS), n))
    for world in range(len(LABELS)):
        for j in range(n):
            with target.machine(B=B, batches=BATCHES, rounds=0) as machine:
                machine.fill(1, CANARY, h)
                machine.run.server.y_train[CANARY] = LABELS[world]
                scores[world, j] = _score(machine, target.config.head)
    return Evidence(scores[0], scores[1], 0.0, plan.cost, plan.delta_dp, plan.epsilon_replace_one)


def _score(machine: Machine, head: HeadSection) -> float:
    """Where the noisy sums lie between the two gradients at the w_0 of each step: above 0 is nearer to the second.

    All empty rows have the same gradient, so looking across it leaves out the others, however many were drawn.
    """
    row = machine.run.server.table.h[CANARY : CANARY + 1]
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
