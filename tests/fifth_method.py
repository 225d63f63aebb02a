"""A fifth method as a stranger would write it: its file `methods/three_ways.py`, and its entry in the table."""

FILE = '''"""One-sided differences along three directions a message: four embeddings up, three numbers down."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.methods.rules import Answer, DeviceRule, Question, ServerRule
from dpzv.methods.steps import zo_step
from dpzv.zo.clipping import clipped_rows
from dpzv.zo.estimator import one_sided
from dpzv.zo.perturb import perturbed

__all__ = ["ThreeWaysDevice", "ThreeWaysServer"]

WAYS = 3
"""Directions a message."""


class ThreeWaysDevice(DeviceRule):
    """Sends h and h at w_m + lam*u_k for three directions, and moves along all of them."""

    @torch.no_grad()
    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        """h, and h_plus for each direction."""
        sent: list[torch.Tensor] = [self.network(x)]
        for k in range(WAYS):
            with perturbed(self._u(WAYS * position + k), self._lam):
                sent.append(self.network(x))
        return tuple(sent)

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """w_m <- w_m - eta_m * (1/3) * sum_k Delta_k * u_k."""
        zo_step(self.velocity, self._u, WAYS * position, Delta, self.steps, t)


class ThreeWaysServer(ServerRule):
    """Returns three means; each record's three differences are clipped together."""

    __slots__ = ()

    @torch.no_grad()
    def answer(self, asked: Question) -> Answer:
        """Three means over the batch; the table keeps h."""
        losses = []
        for h in (*asked.h[1:], asked.h[0]):
            asked.put(h)
            losses.append(self.loss(self.head_rule.output(asked.t, asked.rows, 0.0), asked.y))
        differences = one_sided(losses[:-1], losses[-1], asked.lam)
        totals, grid = clipped_rows(differences, self.C, asked.contributes)
        return Answer(totals.sum(axis=0), grid, divisor=len(asked.y))
'''

ENTRY = """    MethodFacts(
        name="three-ways",
        module="three_ways",
        arrays=lambda K: 4,
        directions=False,
        pairs=False,
        slopes=True,
        numbers=lambda B, width, q, K, clipped: 3,
        per_record=False,
        backpropagates=False,
        published="downlink",
        two_points=False,
        releases="answers (three mean differences) over B={B} records each",
        several="",
    ),
"""
