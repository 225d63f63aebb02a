"""ZOO-VFL (Zhang et al., 2021): zeroth order on both sides, one-sided differences.

    device m sends h = network(x; w_m) and h_plus at w_m + lam*u      ZooVflDevice.embeddings
    server returns the two loss values of the batch                   ZooVflServer.answer
    server moves w_0 by a zeroth-order step of its own                HeadRule.move (as published: `zo`)
    w_m <- w_m - eta_m * (f_plus - f) / lam * u                       ZooVflDevice.update

Privacy as published: both embeddings are clipped and get vector noise on their way up. Our protection of labels: one
number comes back, the batch's mean of clipped differences, with noise.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.methods.rules import Answer, DeviceRule, Question, ServerRule, check_length
from dpzv.methods.steps import zo_step
from dpzv.zo.clipping import clipped_sum
from dpzv.zo.estimator import delta_zo
from dpzv.zo.perturb import perturbed

__all__ = ["ZooVflDevice", "ZooVflServer"]


class ZooVflDevice(DeviceRule):
    """Sends h and h_plus, moves along u."""

    @torch.no_grad()
    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        """h and h_plus [B, k]; where the uplink is protected, with independent noise on each."""
        h = self._uplink.clipped(self.network(x))
        with perturbed(self._u(position), self._lam):
            h_plus = self._uplink.clipped(self.network(x))
        return (
            self._uplink.noised(h, "uplink", self._m, position),
            self._uplink.noised(h_plus, "uplink plus", self._m, position),
        )

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """w_m <- w_m - eta_m * (f_plus - f) / lam * u, with the same u as in `embeddings`.

        Two numbers in `Delta` are the losses f and f_plus, in this order; one number is their noised difference over
        lam.
        """
        if len(Delta) != 1:
            check_length(Delta, 2)
            Delta = np.diff(Delta) / self._lam
        zo_step(self.velocity, self._u, position, Delta, self.steps, t)


class ZooVflServer(ServerRule):
    """Returns the batch's losses at h and h_plus; with a clip the mean of the records' clipped differences instead."""

    __slots__ = ()

    @torch.no_grad()
    def answer(self, asked: Question) -> Answer:
        """(f, f_plus) without a clip, else one difference over lam; the table keeps h."""
        (h, h_plus), rows, y, contributes = asked.h, asked.rows, asked.y, asked.contributes
        asked.put(h_plus)
        f_plus = self.loss(self.head_rule.output(asked.t, rows, 0.0), y)
        asked.put(h)
        f = self.loss(self.head_rule.output(asked.t, rows, 0.0), y)
        B = len(y)
        if self.C < float("inf"):
            clipped = clipped_sum(delta_zo(f_plus, f, asked.lam / 2), self.C, contributes)
            return Answer(np.array([clipped.total]), clipped.grid, divisor=B)
        losses = [values.double().numpy(force=True) for values in (f, f_plus)]
        finite = np.isfinite(losses).all(axis=0)
        keep = finite if contributes is None else finite & contributes
        return Answer(np.array([values[keep].sum() for values in losses]), 1.0, divisor=B)
