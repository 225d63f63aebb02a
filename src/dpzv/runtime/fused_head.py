"""The server's model w_0 of several runs at once: its outputs for whole batches, and its private steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dpzv.methods.heads import HeadRule
from dpzv.models.head import SumHead
from dpzv.models.losses import Loss
from dpzv.runtime.fused_flat import Flat

__all__ = ["Heads"]


class Heads:
    """w_0 of R runs: `w` [R, d_0] and its velocity; nothing of both where the head only adds."""

    def __init__(self, rules: Sequence[HeadRule], loss: Loss) -> None:
        self._rules, self._loss = rules, loss
        heads = [rule.head for rule in rules]
        self.flat: Flat | None = None
        if isinstance(heads[0], SumHead):
            self._base = torch.stack([head.base for head in heads if isinstance(head, SumHead)])
            self._scale = torch.stack([head.scale for head in heads if isinstance(head, SumHead)])
            return
        self.flat = Flat(heads[0])
        self.w = torch.stack([self.flat.joined(list(head.parameters())) for head in heads]).detach()
        self.velocity = torch.zeros_like(self.w)
        if rules[0].velocity:
            self.velocity = torch.stack([self.flat.joined(rule.velocity) for rule in rules])

    def outputs(self, rows: Tensor, w: Tensor | None = None) -> Tensor:
        """Outputs [R, P, B, n] for `rows` [R, P, B, k_1+...+k_M], at w_0, or at `w` [R, P, d_0]."""
        R, P, B, width = rows.shape
        if self.flat is None:
            n = self._base.shape[1]
            total = rows.view(R, P, B, width // n, n).sum(3)
            return self._base[:, None, None] + self._scale[:, None, None, None] * total
        if w is None:
            return self._layers(self.w, rows.reshape(R, P * B, width)).view(R, P, B, -1)
        return self._layers(w.flatten(0, 1), rows.reshape(R * P, B, width)).view(R, P, B, -1)

    def along(self, rows: Tensor, columns: Tensor, steps: Tensor) -> Tensor:
        """Outputs [R, 1+K, B, n] for `rows` [R, B, ...], then with each of `steps` [R, K, B, k] added to `columns`.

        The first layer reads all columns once, and then only those of the device, `columns` [R, k].
        """
        R, K, B, k = steps.shape
        if self.flat is None:
            first = self.outputs(rows[:, None])
            return torch.cat((first, first + self._scale[:, None, None, None] * steps), 1)
        parts = self.flat.views(self.w)
        weight = parts["hidden.weight"]
        first = _linear(rows, weight, parts["hidden.bias"])[:, None]
        some = weight.gather(2, columns[:, None].expand(R, weight.shape[1], k))
        moved = torch.bmm(steps.reshape(R, K * B, k), some.transpose(1, 2)).view(R, K, B, -1)
        hidden = torch.cat((first, moved.add_(first)), 1).relu_()
        out = _linear(hidden.view(R, (1 + K) * B, -1), parts["out.weight"], parts["out.bias"])
        return out.view(R, 1 + K, B, -1)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The losses [R, P, B] of outputs [R, P, B, n], for labels `y` [R*P*B]."""
        return self._loss(outputs.flatten(0, 2), y).view(outputs.shape[:3])

    def restore(self) -> None:
        """Write w_0 and its velocity back into the heads of the runs."""
        if self.flat is None:
            return
        for r, rule in enumerate(self._rules):
            self.flat.take(self.w[r], list(rule.head.parameters()))
            if rule.velocity:
                self.flat.take(self.velocity[r], rule.velocity)

    def clipped_sums(self, rows: Tensor, y: Tensor, real: Tensor, C_0: Tensor) -> Tensor:
        """`clipped_gradient_sum` of R runs at once, as rows [R, d_0] in float64.

        `rows` [R, n, K] and `y` [R, n] are samples in buffers of one size; records where `real` [R, n] is false are not
        in the sample and add nothing. `C_0` [R] are the clips.
        """
        assert self.flat is not None
        inputs, hidden, g_hidden, g_out = self._backward(rows, y)
        norm = partial(torch.linalg.vector_norm, dim=2)
        lower = norm(g_hidden).square() * (norm(inputs).square() + 1)
        norms = (lower + norm(g_out).square() * (norm(hidden).square() + 1)).sqrt()
        usable = norms.isfinite() & real
        factor = torch.where(usable, C_0[:, None] / norms.clamp_min(C_0[:, None]), 0.0)[..., None]
        # 0 * inf is nan: a record that is not finite is removed from every factor of its outer products
        inputs, hidden, g_hidden, g_out = (
            torch.where(usable[..., None], part, 0.0) for part in (inputs, hidden, g_hidden * factor, g_out * factor)
        )
        sums = inputs.new_empty(len(rows), self.flat.d)
        for name, total in {
            "hidden.weight": g_hidden.transpose(1, 2) @ inputs,
            "hidden.bias": g_hidden.sum(1),
            "out.weight": g_out.transpose(1, 2) @ hidden,
            "out.bias": g_out.sum(1),
        }.items():
            self.flat.views(sums)[name].copy_(total)
        return sums

    def _backward(self, rows: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs and hidden activations, and the loss's gradients at both layers' outputs, all in float64."""
        assert self.flat is not None
        parts = {name: part.double() for name, part in self.flat.views(self.w).items()}
        inputs = rows.double()
        before = torch.baddbmm(parts["hidden.bias"][:, None], inputs, parts["hidden.weight"].transpose(1, 2))
        with torch.enable_grad():
            hidden = before.requires_grad_().relu()
            output = torch.baddbmm(parts["out.bias"][:, None], hidden, parts["out.weight"].transpose(1, 2))
            losses = self._loss(output.flatten(0, 1), y.flatten())
            # losses do not couple records, so the gradient of their sum is each record's own
            g_hidden, g_out = torch.autograd.grad(losses.sum(), (before, output))
        return inputs, hidden.detach(), g_hidden, g_out

    def _layers(self, w: Tensor, rows: Tensor) -> Tensor:
        """Outputs [G, N, n] of rows [G, N, ...] at the weights `w` [G, d_0]."""
        assert self.flat is not None
        parts = self.flat.views(w)
        hidden = _linear(rows, parts["hidden.weight"], parts["hidden.bias"]).relu()
        return _linear(hidden, parts["out.weight"], parts["out.bias"])


def _linear(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`rows` [G, N, inputs] through one linear layer for each of G; a single one is a faster operation."""
    if len(rows) == 1:
        return F.linear(rows[0], weight[0], bias[0])[None]
    return torch.baddbmm(bias[:, None], rows, weight.transpose(1, 2))
