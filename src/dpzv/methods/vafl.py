"""VAFL (Chen et al., 2020): first order, asynchronous.

    device m sends h = network(x; w_m)                            VaflDevice.embeddings
    server computes the loss with its table                       VaflServer.answer
    and returns every record's gradient with respect to its h
    server moves w_0                                              HeadRule.move (as published: `sgd`)
    device backpropagates the mean over the batch                 VaflDevice.update

Privacy as published: every embedding is clipped and gets vector noise on its way up (`Uplink`). Our protection of
labels: every record's gradient vector is clipped to norm C, and every entry gets noise on its way down. The vector
belongs to one record, so no mean over the batch makes that noise smaller.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.methods.rules import Answer, FirstOrder, Question, ServerRule, check_length
from dpzv.zo.clipping import clipped_rows

__all__ = ["VaflDevice", "VaflServer"]


class VaflDevice(FirstOrder):
    """Backpropagates the gradients that come back."""

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """w_m <- w_m - eta_m * gradient of the batch's mean loss, by the chain rule through h."""
        h = self.sent()
        check_length(Delta, h.numel())
        self.backpropagate(h, torch.from_numpy(Delta).to(h.device, h.dtype).view_as(h) / len(h), t)


class VaflServer(ServerRule):
    """Returns the gradient of every record's own loss with respect to that record's h."""

    __slots__ = ()

    def answer(self, asked: Question) -> Answer:
        """Gradients [B*k], each record's clipped to norm C; the head treats records one by one."""
        asked.put(asked.h[0])
        with torch.enable_grad():
            inputs = asked.rows.clone().requires_grad_()
            losses = self.loss(self.head_rule.output(asked.t, inputs, 0.0), asked.y)
            (gradients,) = torch.autograd.grad(losses.sum(), inputs)
        own = gradients[:, asked.columns].double().numpy(force=True)
        totals, grid = clipped_rows(own, self.C, asked.contributes)
        return Answer(totals.reshape(-1), grid, divisor=1)
