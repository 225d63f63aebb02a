"""Algorithm 1 of the paper (DPZV), line by line; who sends what when is in `protocol/`.

    for t = 1..T:
        device m computes h_plus, h_minus at w_m +- lam*u              DeviceRule.embeddings
        (forward) device transmits embeddings to server
        server computes delta_zo = (f_plus - f_minus) / (2*lam)
        Delta = (1/B) * sum_i clip_C(delta_zo_i) + z                   ServerRule.answer, then the gate
        server updates w_0                                             ServerRule.update
        (backward) device receives Delta
        w_m <- w_m - eta_m * Delta * u                                 DeviceRule.update

The divisor is 2*lam as in the paper's eq. (zero), not lam as in its eq. (delta); the clip is two-sided
(docs/fidelity.md). One record's term depends on that record, public constants and the history alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpzv.methods.heads import HeadRule
from dpzv.methods.steps import Steps
from dpzv.models.losses import Loss
from dpzv.rng import seed_of
from dpzv.zo.clipping import ClippedSum, clipped_sum
from dpzv.zo.directions import layout
from dpzv.zo.estimator import delta_zo
from dpzv.zo.perturb import momentum_step, step, two_point

__all__ = ["DeviceRule", "ServerRule"]


class DeviceRule:
    """What device m does in a round. It holds w_m (`network`) and, with momentum, one velocity beside it."""

    def __init__(self, network: torch.nn.Module, *, m: int, seed: int, lam: float, steps: Steps) -> None:
        self.network = network
        self.velocity = [torch.zeros_like(w) for w in layout(network).parameters] if steps.momentum else []
        self._m, self._seed, self._lam, self._steps = m, seed, lam, steps

    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """h_plus and h_minus [B, k] of the batch `x` at `position` of the device's schedule."""
        return two_point(self.network, x, self._direction(position), self._lam)

    def update(self, Delta: float, *, position: int, t: int) -> None:
        """w_m <- w_m - eta_m * Delta * u, with the same u as in `embeddings`, regenerated."""
        u, eta, momentum = self._direction(position), self._steps.at(t), self._steps.momentum
        if momentum:
            momentum_step(self.network, self.velocity, u, Delta, eta=eta, momentum=momentum)
        else:
            step(self.network, u, eta * Delta)

    def _direction(self, position: int) -> int:
        return seed_of(self._seed, "direction", self._m, position)


@dataclass(frozen=True, slots=True)
class ServerRule:
    """What the server computes in a round."""

    head: torch.nn.Module
    rule: HeadRule
    loss: Loss
    C: float

    @torch.no_grad()
    def answer(
        self,
        t: int,
        rows: torch.Tensor,
        columns: slice,
        h_plus: torch.Tensor,
        h_minus: torch.Tensor,
        y: torch.Tensor,
        *,
        lam: float,
        contributes: torch.Tensor | None,
    ) -> ClippedSum:
        """The sum of clipped differences of a batch; the unclipped ones never leave this function.

        `rows` [B, k_1+...+k_M] are the table's rows of the batch; `columns` are replaced by `h_plus`, then
        by `h_minus`. A record where `contributes` is false adds 0. On return `rows` holds the midpoint.
        """
        rows[:, columns] = h_plus
        f_plus = self.loss(self.rule.output(t, rows, lam), y)
        rows[:, columns] = h_minus
        f_minus = self.loss(self.rule.output(t, rows, -lam), y)
        rows[:, columns] = (h_plus + h_minus) / 2
        return clipped_sum(delta_zo(f_plus, f_minus, lam), self.C, contributes)

    def update(self, t: int, Delta: float, rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """Move w_0 after the release of round t; `rows` are those of the batch, with m's midpoint."""
        self.rule.move(t, Delta, rows, y, steps)
