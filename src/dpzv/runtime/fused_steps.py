"""The private steps of w_0 in a fused run: Poisson samples in buffers of one size, with a mask.

A sample has a random size and a graph has not, so ids stand in a buffer that a sample exceeds with a probability below
1e-12 over the run. Such a sample is not cut: its step is computed by itself, with a longer buffer. So every step is
that of the account, and nothing has to be added to `delta_dp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpzv.methods.dpsgd import DPSGD
from dpzv.runtime.fused_head import Heads
from dpzv.runtime.fused_round import Knobs
from dpzv.runtime.fused_tape import Board

__all__ = ["FusedHeadSteps", "buffer_size"]

ROWS = 64
"""Sizes of buffers are multiples of this."""


def buffer_size(D: int, expected: int, steps: int, overflow: float = 1e-12) -> int:
    """The size that all of `steps` Poisson samples of D records stay within, but for a probability of `overflow`.

    A sum of independent coins with mean `a` is above a + x with probability at most exp(-x^2 / (2 (a + x/3)))
    (Bernstein); the union over the steps is solved for x.
    """
    L = math.log(max(steps, 1) / overflow)
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
            host = torch.from_numpy(values)
            place[:count].copy_(host.pin_memory() if place.is_cuda else host, non_blocking=True)

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
