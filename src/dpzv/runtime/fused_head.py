"""The server's model w_0 of several runs at once: its outputs for whole batches, and its private steps.

A Poisson sample has a random size, but a graph needs a fixed one. So the ids of a step stand in a buffer that is too
short with a probability below 1e-12 over the run. A longer sample is not cut: its step is computed by itself, with a
longer buffer. So every step is that of the account, and nothing has to be added to `delta_dp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpzv.methods.dpsgd import DPSGD
from dpzv.methods.heads import HeadRule
from dpzv.models.head import SumHead
from dpzv.models.losses import Loss
from dpzv.runtime.fused_board import Board, Knobs
from dpzv.runtime.fused_flat import Flat

__all__ = ["FusedHeadSteps", "Heads", "buffer_size"]


class Heads:
    """w_0 of R runs: `w` [R, d_0] and its velocity; a head that only adds has neither."""

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


ROWS = 64
"""Sizes of buffers are multiples of this."""
OVERFLOW = 1e-12
"""The probability that a sample of a run is longer than its buffer."""


def buffer_size(D: int, expected: int, steps: int) -> int:
    """The size that all of `steps` Poisson samples of D records stay within, but for the probability `OVERFLOW`.

    A sum of independent coins with mean `a` is above a + x with probability at most exp(-x^2 / (2 (a + x/3)))
    (Bernstein); the union over the steps is solved for x.
    """
    L = math.log(max(steps, 1) / OVERFLOW)
    x = L / 3 + math.sqrt(L * L / 9 + 2 * L * expected)
    return min(D, ROWS * math.ceil((expected + x) / ROWS))


class FusedHeadSteps:
    """Steps of the heads of R runs, whose rules are `rules`; `n` of them are drawn ahead at most."""

    def __init__(
        self, rules: Sequence[DPSGD], heads: Heads, board: Board, knobs: Knobs, *, n: int, planned: int
    ) -> None:
        assert heads.flat is not None
        self._rules, self._heads, self._board, self._knobs, self.n = rules, heads, board, knobs, n
        accelerator, R = board.table.device, board.R
        self.size = buffer_size(board.D, knobs.head_batch, planned)
        self._ids = torch.zeros(n, R, self.size, dtype=torch.int64, device=accelerator)
        self._counts = torch.zeros(n, R, dtype=torch.int64, device=accelerator)
        self._noise = torch.zeros(n, R, heads.flat.d, dtype=torch.float64, device=accelerator)
        self._eta = torch.zeros(n, R, dtype=torch.float64, device=accelerator)
        self._first = (torch.arange(R, device=accelerator) * board.D)[:, None]
        self._long: dict[int, Tensor] = {}

    def draw(self, rounds: Sequence[tuple[int, int]]) -> None:
        """Draw samples and noise of the steps (t, j), in their order, at most `n` of them."""
        flat = self._heads.flat
        assert flat is not None
        R, count = self._board.R, len(rounds)
        ids, counts = np.zeros((count, R, self.size), np.int64), np.zeros((count, R), np.int64)
        noise, self._long = torch.zeros(count, R, flat.d, dtype=torch.float64), {}
        for i, (t, j) in enumerate(rounds):
            drawn = [rule.draw(t, j) for rule in self._rules]
            most = max(len(sample) for sample, _ in drawn)
            room = ids[i] if most <= self.size else np.zeros((R, most), np.int64)
            for r, (sample, added) in enumerate(drawn):
                room[r, : len(sample)], counts[i, r] = sample, len(sample)
                flat.put([torch.from_numpy(one) for one in added], noise[i, r])
            if most > self.size:
                self._long[i] = torch.from_numpy(room).to(self._ids.device)
        eta = [[rule.steps.at(t) for rule in self._rules] for t, _ in rounds]
        pairs = (self._ids, ids), (self._counts, counts), (self._noise, noise.numpy()), (self._eta, np.array(eta))
        for place, values in pairs:
            rows = torch.from_numpy(values)
            place[:count].copy_(rows.pin_memory() if place.is_cuda else rows, non_blocking=True)

    def alone(self, i: int) -> bool:
        """Whether step i of those drawn does not fit the buffer, and must be taken by `longer`."""
        return i in self._long

    def longer(self, i: int) -> None:
        """Take step i of those drawn, whose sample is longer than the buffer."""
        self._step(i, self._long[i])

    def __call__(self, i: int) -> None:
        """Take step i of those drawn."""
        self._step(i, self._ids[i])

    @torch.no_grad()
    def _step(self, i: int, ids: Tensor) -> None:
        """Step i, on the samples `ids` [R, n], of which the first ones count."""
        heads, board, knobs = self._heads, self._board, self._knobs
        R, n = ids.shape
        counts, noise, eta = self._counts[i], self._noise[i], self._eta[i]
        real = torch.arange(n, device=ids.device) < counts[:, None]
        rows = board.table.index_select(0, (self._first + ids).flatten()).view(R, n, -1)
        sums = heads.clipped_sums(rows, board.y.index_select(0, ids.flatten()).view(R, n), real, knobs.C_0)
        heads.velocity.mul_(knobs.momentum_0[:, None]).add_((sums + noise) / knobs.head_batch)
        heads.w.sub_((eta[:, None] * heads.velocity).to(heads.w.dtype))
