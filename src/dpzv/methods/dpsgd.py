"""`dp-sgd`: the server moves w_0 by its own noisy gradient steps, drawn in secret from the whole table.

Amplification is real here because the coins are secret: one Bernoulli(q) per record and step, over all D
records whether their row is filled or not (an empty row is zeros). The batch drawn, its size included,
appears nowhere outside this file: not in a log, a metric or a status.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dpzv.methods.gradients import clipped_gradient_sum
from dpzv.methods.heads import HeadRule
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import Loss
from dpzv.privacy.noise import poisson_batch

__all__ = ["DPSGD", "Coins"]

Coins = Callable[[int, int], np.random.Generator]
"""``coins(t, j)``: the stream of the j-th head step after round t; secret, or seeded for simulation."""


class DPSGD(HeadRule):
    """w_0 moves by noisy sums of clipped gradients over Poisson samples of the table.

    Formal guarantee: a step is the Gaussian mechanism with noise multiplier `z` on a Poisson sample of rate
    `q`; `batch` = q*D is public, the realised batch is not used as a divisor.
    """

    def __init__(
        self,
        head: Head,
        loss: Loss,
        table: torch.Tensor,
        y: torch.Tensor,
        coins: Coins,
        *,
        batch: int,
        z: float,
        C_0: float,
        steps: Steps,
    ) -> None:
        self.head = head
        self.velocity = [torch.zeros_like(w, dtype=torch.float64, requires_grad=False) for w in head.parameters()]
        self._loss, self._table, self._y, self._coins = loss, table, y, coins
        self._batch, self._z, self._C_0 = batch, z, C_0
        self._steps = steps

    def output(self, t: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        """The head at w_0."""
        output: torch.Tensor = self.head(rows)
        return output

    def move(self, t: int, Delta: float, rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """Take the steps that the gate admitted after round t; the round's own batch is not used."""
        for j in range(steps):
            self._step(self._coins(t, j), self._steps.at(t))

    def _step(self, generator: np.random.Generator, eta: float) -> None:
        D = len(self._y)
        ids = torch.from_numpy(poisson_batch(generator, D, self._batch / D)).to(self._table.device)
        sums = clipped_gradient_sum(self.head, self._table[ids], self._y[ids], self._loss, self._C_0)
        with torch.no_grad():
            for w, v, total in zip(self.head.parameters(), self.velocity, sums, strict=True):
                noise = torch.from_numpy(generator.standard_normal(tuple(total.shape))).to(total.device)
                v.mul_(self._steps.momentum).add_((total + self._z * self._C_0 * noise) / self._batch)
                w.sub_((eta * v).to(w.dtype))
