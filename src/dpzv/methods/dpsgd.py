"""`dp-sgd`: the server moves w_0 by its own noisy gradient steps, drawn in secret from the whole table.

Sampling amplifies privacy here because the coins are secret: one Bernoulli(q) per record and step, over all D
records whether their row is filled or not (an empty row is zeros). The batch drawn, its size included,
appears nowhere outside this file: not in a log, a metric or a status.

Per-record gradients are clipped without ever making one gradient per record: the gradient of a linear layer for one
record is an outer product, so its norm is a product of two norms and the clipped sum is one matrix product. All of it
is in float64, so that the clip holds to a relative 1e-13. With secret noise the sums are rounded to a grid, and the
noise is drawn on the same grid, so that the noisy sums, of which w_0 is made, may be published.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.methods.heads import HeadParts, HeadRule
from dpzv.models.head import Head
from dpzv.models.losses import Loss
from dpzv.privacy.head_steps import Noise
from dpzv.sensitivity import SUM_CHUNK

__all__ = ["DPSGD", "clipped_gradient_sum"]

MOST_NUMBERS = 1 << 28
"""The largest private head: rounding this many numbers to the grid moves a sum by a share of 2.4e-7 of the clip."""
ROWS = 64
"""Sizes of batches are multiples of this."""


class DPSGD(HeadRule):
    """w_0 moves by noisy sums of clipped gradients over Poisson samples of the table.

    Formal guarantee: a step is the Gaussian mechanism on a Poisson sample, with the sample and the noise of
    `parts.noise`; the expected batch is public, the realised one is not used as a divisor.
    """

    head: Head

    def __init__(self, parts: HeadParts) -> None:
        super().__init__(parts)
        if parts.table is None or parts.y is None or parts.noise is None:
            raise ConfigError("a private head needs the table, the labels and its noise; give all three.")
        self.velocity = [torch.zeros_like(w, dtype=torch.float64, requires_grad=False) for w in self.head.parameters()]
        self._shapes = [tuple(w.shape) for w in self.head.parameters()]
        self.noise_state = parts.noise.init(self._shapes)
        self._loss = parts.loss
        self._table, self._y, self._noise = parts.table, parts.y, parts.noise
        numbers = sum(w.numel() for w in self.head.parameters())
        if self._noise.grid and numbers > MOST_NUMBERS:
            raise ConfigError(
                f"a private head has at most {MOST_NUMBERS:,} numbers, got {numbers:,}; lower head.hidden."
            )

    def move(self, t: int, Delta: NDArray[np.float64], rows: Tensor, y: Tensor, steps: int) -> None:
        """Take the steps that the gate admitted after round t; the round's own batch is not used."""
        noise = self._noise
        for j in range(steps):
            drawn, added = self.draw(t, j)
            sums = self._sums(drawn)
            eta, momentum = self.steps.at(t), self.steps.momentum
            with torch.no_grad():
                for w, v, total, extra in zip(self.head.parameters(), self.velocity, sums, added, strict=True):
                    noisy = (total + torch.from_numpy(extra).to(total.device)).double() * (noise.grid or 1.0)
                    v.mul_(momentum).add_(noisy / noise.batch)
                    w.sub_((eta * v).to(w.dtype))

    def draw(self, t: int, j: int) -> tuple[NDArray[np.int64], list[Noise]]:
        """The secret sample of the j-th step after round t, and the noise for its sums; to be called in order."""
        drawn, stream = self._noise.sample(t, j)
        added, self.noise_state = self._noise.update(self.noise_state, stream, self._shapes)
        return drawn, added

    def _sums(self, drawn: NDArray[np.int64]) -> list[Tensor]:
        """The clipped sums over the records `drawn`, as integers of the noise's grid if there is one.

        Records are summed in float64 by ranges of ids, each sum is rounded to the grid, and integers are added up. So
        a record moves its own range's sum only, and rounding errors do not grow with the number of records.

        Formal guarantee: with a grid, one record moves the result by at most a share of 1e-6 (`SUM_SLACK`) more than
        `clipped_gradient_sum` would in exact arithmetic.
        """
        noise, found = self._noise, list[Tensor]()
        width = max(1, SUM_CHUNK * noise.D // noise.batch)
        for part in np.split(drawn, np.searchsorted(drawn, np.arange(width, noise.D, width))):
            ids = torch.from_numpy(_padded(part, min(noise.batch, SUM_CHUNK)) if noise.grid else part)
            ids = ids.to(self._table.device)
            sums = clipped_gradient_sum(self.head, self._table[ids], self._y[ids], self._loss, noise.C_0, len(part))
            if noise.grid:
                sums = [(one / noise.grid).round().long() for one in sums]
            found = [a + b for a, b in zip(found, sums, strict=True)] if found else sums
        return found


def _padded(ids: NDArray[np.int64], expected: int) -> NDArray[np.int64]:
    """`ids` with further ids up to a public size, which a draw exceeds with probability below 1e-42.

    Libraries treat a row differently in batches of different sizes; what is computed of a record must not depend on
    which others were drawn.
    """
    size = ROWS * math.ceil((expected + 14 * math.sqrt(expected) + 100) / ROWS)
    return np.pad(ids, (0, -len(ids) % size if len(ids) else size))


def clipped_gradient_sum(
    head: Head, rows: Tensor, y: Tensor, loss: Loss, C_0: float, real: int | None = None
) -> list[Tensor]:
    """Sum over records of the loss's gradient in w_0, each clipped to norm `C_0` over all tensors together.

    `rows` [n, K] and `y` [n] are a batch, which may be empty. Returns float64 tensors in the order of
    ``head.parameters()``. A record whose gradient is not finite counts as the zero vector, and so do all after the
    first `real` ones, if that is given.

    Formal guarantee: one record moves the result by at most `C_0` (zero-out) or `2*C_0` (replace-one) in norm.
    """
    inputs, hidden, g_hidden, g_out = _backward(head, rows, y, loss)
    norm = partial(torch.linalg.vector_norm, dim=1)
    # ||g x^T||^2 + ||g||^2 = ||g||^2 (||x||^2 + 1) for weight and bias of a layer, and the two layers add up
    lower = norm(g_hidden).square_() * (norm(inputs).square_() + 1)
    norms = (lower + norm(g_out).square_() * (norm(hidden).square_() + 1)).sqrt()
    usable = norms.isfinite()
    if not bool(usable.all()):
        # 0 * inf is nan: a record that is not finite is removed from every factor of its outer products
        inputs, hidden, g_hidden, g_out = (
            torch.where(usable[:, None], part, 0.0) for part in (inputs, hidden, g_hidden, g_out)
        )
        norms = torch.where(usable, norms, C_0)
    factor = (C_0 / norms.clamp_min(C_0))[:, None]
    if real is not None:
        factor[real:] = 0.0
    g_hidden.mul_(factor)
    g_out = g_out * factor
    return [g_hidden.T @ inputs, g_hidden.sum(0), g_out.T @ hidden, g_out.sum(0)]


def _backward(head: Head, rows: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs [n, K] and hidden activations [n, H], and the loss's gradients at both layers' outputs."""
    with torch.no_grad():
        inputs = rows.double()
        before = torch.addmm(head.hidden.bias.double(), inputs, head.hidden.weight.double().T)
        w, b = head.out.weight.double(), head.out.bias.double()
    with torch.enable_grad():
        hidden = before.requires_grad_().relu()
        output = torch.addmm(b, hidden, w.T)
        # losses do not couple records, so the gradient of their sum is each record's own
        g_hidden, g_out = torch.autograd.grad(loss(output, y).sum(), (before, output))
    return inputs, hidden.detach(), g_hidden, g_out
