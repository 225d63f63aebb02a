"""VFL-CZOFO (Wang et al., 2024): a cascade that is zeroth order between the parties and first order within each.

    device m sends h = network(x; w_m)                                          VflCzofoDevice.embeddings
    server perturbs the batch's embeddings in q directions v_j and returns      VflCzofoServer.answer
    the q differences (F(h + lam*v_j) - F(h)) / lam of the batch's loss F
    server moves w_0                                                            HeadRule.move (as published: `sgd`)
    device rebuilds (1/q) * sum_j difference_j * v_j and backpropagates it      VflCzofoDevice.update

The directions are standard normal [B, k], drawn by both sides from a public seed, so they cost no bytes. Privacy as
published: every embedding is clipped and gets vector noise on its way up. Our protection of labels: every record's q
differences are clipped to norm C together, and their means over the batch get noise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.methods.rules import Answer, FirstOrder, Question, ServerRule
from dpzv.rng import seed_of, torch_generator
from dpzv.zo.clipping import clipped_rows
from dpzv.zo.estimator import one_sided

__all__ = ["VflCzofoDevice", "VflCzofoServer", "directions"]


def directions(seed: int, q: int, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """v_1 .. v_q of `shape` [B, k], one after the other; drawn on the CPU, where every party draws the same.

    The name of the stream, and that of `seed` ("direction", m, position), are a format: both sides must agree on them.
    """
    for j in range(q):
        yield torch.randn(shape, generator=torch_generator(seed, "embedding direction", j))


class VflCzofoDevice(FirstOrder):
    """Rebuilds the gradient in h from as many differences as the server returns."""

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """w_m <- w_m - eta_m * gradient, by the chain rule through the estimate of the gradient in h."""
        h, q = self.sent(), len(Delta)
        g = torch.zeros_like(h)
        seed = seed_of(self._seed, "direction", self._m, position)
        for difference, v in zip(Delta.tolist(), directions(seed, q, h.shape), strict=True):
            g += (difference / q) * v.to(h.device)
        self.backpropagate(h, g, t)


class VflCzofoServer(ServerRule):
    """Returns q differences of the batch's loss."""

    __slots__ = ()

    @torch.no_grad()
    def answer(self, asked: Question) -> Answer:
        """q means over the batch, each record's q differences clipped together."""
        (h,), rows, y, lam = asked.h, asked.rows, asked.y, asked.lam
        asked.put(h)
        f, moved = self.loss(self.head_rule.output(asked.t, rows, 0.0), y), []
        for v in directions(seed_of(self.seed, "direction", asked.m, asked.position), self.q, h.shape):
            asked.put(h + (lam * v).numpy())
            moved.append(self.loss(self.head_rule.output(asked.t, rows, 0.0), y))
        asked.put(h)
        totals, grid = clipped_rows(one_sided(moved, f, lam), self.C, asked.contributes)
        return Answer(totals.sum(axis=0), grid, divisor=len(y))
