"""Algorithm 1 of the paper (DPZV), line by line, with K directions a message; who sends what when is in `protocol/`.

    for t = 1..T:
        device m computes h at w_m and h_j at w_m + lam*u_j, j = 1..K     DpzvDevice.embeddings
        (forward) device transmits embeddings to server
        server computes delta_zo_j = (f(h_j) - f(h)) / lam
        Delta = (1/B) * sum_i clip(delta_zo_i) + z, K numbers             DpzvServer.answer, then the gate
        server updates w_0                                                HeadRule.move (heads.py)
        (backward) device receives Delta
        w_m <- w_m - eta_m * (1/K) * sum_j Delta_j * u_j                  DpzvDevice.update

K = 1 (`train.directions`) is the paper: the device sends h_plus and h_minus at w_m +- lam*u, and delta_zo is
(f_plus - f_minus) / (2*lam). With more directions the common h takes the place of K values h_minus, which halves
evaluations and bytes. One record's K differences are clipped to the Euclidean norm C*sqrt(K) together.

The divisor is 2*lam as in the paper's eq. (zero), not lam as in its eq. (delta); the clip is two-sided
(docs/fidelity.md). One record's term depends on that record, public constants and the history alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.methods.linear_device import along, is_linear
from dpzv.methods.rules import Answer, DeviceRule, Question, ServerRule, check_length
from dpzv.methods.steps import zo_step
from dpzv.sensitivity import euclidean_clip
from dpzv.zo.clipping import clipped_rows, clipped_sum
from dpzv.zo.estimator import delta_zo, one_sided
from dpzv.zo.perturb import perturbed, two_point

__all__ = ["DpzvDevice", "DpzvServer"]

WIDE = 256
"""With more columns than this, the time of a round is that of the head's first layer."""


class DpzvDevice(DeviceRule):
    """Sends embeddings along K directions, and moves along them by the K numbers that come back.

    Direction j of a batch, counted from 0, is number position*K + j of the device's stream, which is a format.
    """

    @torch.no_grad()
    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        """h and h_1 .. h_K [B, k] of the batch `x` at `position` of the device's schedule; for K = 1 h_plus, h_minus.

        They are computed one after the other, so that K directions need no more memory than one; a linear map is
        evaluated along all of them at once.
        """
        if self._K == 1:
            return two_point(self.network, x, self._u(position), self._lam)
        numbers = range(position * self._K, (position + 1) * self._K)
        if self._u.keeps == self._K and is_linear(self.network, self._u.layout):
            return along(self.network, x, [self._u(number) for number in numbers], self._lam)
        h: list[torch.Tensor] = [self.network(x)]
        for number in numbers:
            with perturbed(self._u(number), self._lam):
                h.append(self.network(x))
        return tuple(h)

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """w_m <- w_m - eta_m * (1/K) * sum_j Delta_j * u_j, with the same u_j as in `embeddings`."""
        check_length(Delta, self._K)
        zo_step(self.velocity, self._u, position * self._K, Delta, self.steps, t)


class DpzvServer(ServerRule):
    """Returns the mean over the batch of the records' clipped differences."""

    __slots__ = ()

    @torch.no_grad()
    def answer(self, asked: Question) -> Answer:
        """The mean of clipped differences; the unclipped ones never leave this function.

        The asking device's columns are one of its embeddings after the other; the table keeps h, or the midpoint of
        h_plus and h_minus.
        """
        h, lam, first = asked.h, asked.lam, asked.t * self.K
        if self.K == 1:
            f_plus, f_minus = self._losses(asked, first)
            asked.put(0.5 * h[0] + 0.5 * h[1])
            difference = delta_zo(f_plus, f_minus, lam)
            clipped, above = clipped_sum(difference, self.C, asked.contributes), np.abs(difference) > self.C
            return Answer(np.array([clipped.total]), clipped.grid, len(asked.y), int(np.count_nonzero(above)))
        asked.put(h[0])
        outputs = self.head_rule.outputs(first, asked.rows, asked.columns, h, lam)
        f, *moved = (self.loss(output, asked.y) for output in outputs)
        differences, clip = one_sided(moved, f, lam), euclidean_clip(self.C, self.K)
        totals, grid = clipped_rows(differences, clip, asked.contributes)
        with np.errstate(over="ignore"):
            above = np.add.reduce(np.square(differences), axis=1) > clip * clip
        return Answer(totals.sum(axis=0), grid, len(asked.y), int(np.count_nonzero(above)))

    def _losses(self, asked: Question, number: int) -> Iterator[torch.Tensor]:
        """The losses [B] at h_plus and at h_minus, where w_0 may be shifted along its direction `number` as well.

        With many devices the head's first layer reads all columns once, and then only what changes between the two.
        """
        rule, rows, (plus, minus), lam = self.head_rule, asked.rows, asked.h, asked.lam
        asked.put(plus)
        if rows.shape[1] > WIDE and not rule.shifts:
            for output in rule.outputs(number, rows, asked.columns, asked.h, lam):
                yield self.loss(output, asked.y)
            return
        yield self.loss(rule.output(number, rows, lam), asked.y)
        asked.put(minus)
        yield self.loss(rule.output(number, rows, -lam), asked.y)
