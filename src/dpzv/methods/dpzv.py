"""Algorithm 1 of the paper (DPZV), line by line; who sends what when is in `protocol/`.

    for t = 1..T:
        device m computes h_plus, h_minus at w_m +- lam*u              DpzvDevice.embeddings
        (forward) device transmits embeddings to server
        server computes delta_zo = (f_plus - f_minus) / (2*lam)
        Delta = (1/B) * sum_i clip_C(delta_zo_i) + z                   DpzvServer.answer, then the gate
        server updates w_0                                             HeadRule.move (heads.py)
        (backward) device receives Delta
        w_m <- w_m - eta_m * Delta * u                                 DpzvDevice.update

The divisor is 2*lam as in the paper's eq. (zero), not lam as in its eq. (delta); the clip is two-sided
(docs/fidelity.md). One record's term depends on that record, public constants and the history alone.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.methods.rules import Answer, DeviceRule, Question, ServerRule, check_length
from dpzv.methods.steps import zo_step
from dpzv.zo.clipping import clipped_sum
from dpzv.zo.estimator import delta_zo
from dpzv.zo.perturb import two_point

__all__ = ["DpzvDevice", "DpzvServer"]


class DpzvDevice(DeviceRule):
    """Sends h_plus and h_minus, moves along u by the one number that comes back."""

    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        """h_plus and h_minus [B, k] of the batch `x` at `position` of the device's schedule."""
        return two_point(self.network, x, self._u(position), self._lam)

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """w_m <- w_m - eta_m * Delta * u, with the same u as in `embeddings`."""
        check_length(Delta, 1)
        zo_step(self.velocity, self._u(position), float(Delta[0]), self._steps, t)


class DpzvServer(ServerRule):
    """Returns the mean over the batch of the records' clipped differences."""

    __slots__ = ()

    def answer(self, asked: Question) -> Answer:
        """The mean of clipped differences; the unclipped ones never leave this function.

        The asking device's columns are h_plus for the first evaluation, then h_minus; the table keeps their midpoint.
        """
        (h_plus, h_minus), rows, y, lam = asked.h, asked.rows, asked.y, asked.lam
        with torch.no_grad():
            asked.put(h_plus)
            f_plus = self.loss(self.head_rule.output(asked.t, rows, lam), y)
            asked.put(h_minus)
            f_minus = self.loss(self.head_rule.output(asked.t, rows, -lam), y)
        asked.put(0.5 * h_plus + 0.5 * h_minus)
        clipped = clipped_sum(delta_zo(f_plus, f_minus, lam), self.C, asked.contributes)
        return Answer(np.array([clipped.total]), clipped.grid, divisor=len(h_plus))
