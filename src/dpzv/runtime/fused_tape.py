"""What the rounds of a block need and find: tensors with a row for each round, which a graph reads by its row.

A block's rows are written before it is replayed. Everything random is drawn from the streams of the reference loop,
so a fused run has the directions and the noise of the same run without fusing. What does not depend on earlier rounds,
such as the places of a batch in tables, is computed for the whole block at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpzv.protocol.bounds import LARGEST
from dpzv.runtime.fused_board import Board
from dpzv.runtime.fused_flat import Flat

__all__ = ["Tape", "TapeShape", "normalise"]


@dataclass(frozen=True, slots=True)
class TapeShape:
    """The sizes of a tape: n rounds of R runs, K directions of a device, N numbers that come back, and so on.

    A round evaluates the losses of `points` points. `pairs` says whether directions are used with both signs. `arrays`
    of uplink noise are sent, or 0 where the uplink has none; `head_K` directions of w_0 are drawn, and `q` directions
    of embeddings. `S` devices share the tape.
    """

    n: int
    R: int
    K: int
    N: int
    B: int
    S: int
    width: int
    d: int
    points: int
    pairs: bool
    arrays: int
    q: int
    head_K: int
    head_d: int

    @property
    def numbers(self) -> int:
        """How many numbers a row has, about."""
        own = (self.K + 1) * self.d * 2 + self.head_K * self.head_d + 2 * self.N
        each = (self.q + 2 * self.arrays + 2) * self.width + 2 * self.points + 2 * self.K + 8
        return self.R * (own + each * self.B)


class Tape:
    """Rows that rounds read (`given` by `fused_host.py`, `made` from that for a whole block) and write (`out`)."""

    def __init__(self, shape: TapeShape, board: Board, dtype: torch.dtype) -> None:
        n, R, B, k = shape.n, shape.R, shape.B, shape.width
        self.shape, self.K, self.n, self._board, self._dtype = shape, shape.K, n, board, dtype
        accelerator = board.table.device

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n, R, *size, dtype=dtype, device=accelerator)

        whole, real = torch.int64, torch.float64
        self.given = {name: zeros(dtype=whole) for name in ("slot", "start", "offset")}
        self.given |= {name: zeros(dtype=real) for name in ("lam", "eta", "eta_0")}
        self.given["noise"] = zeros(shape.N, dtype=real)
        if shape.d:
            self.given["u"] = zeros(shape.K, shape.d)
        if shape.head_K:
            self.given["u_0"] = zeros(shape.head_K, shape.head_d)
        if shape.q:
            self.given["v"] = zeros(shape.q, B, k)
        if shape.arrays:
            self.given["up"] = zeros(shape.arrays, B, k, dtype=real)
        self.out = {"Delta": zeros(shape.N, dtype=real), "differences": zeros(shape.K, B, dtype=real)}
        self.out["peak"] = zeros(B, dtype=dtype)
        self._run, self._record = torch.arange(R, device=accelerator), torch.arange(max(B, k), device=accelerator)
        self.made = self._make()

    def row(self, i: int) -> dict[str, Tensor]:
        """What round i reads, by name."""
        return {name: rows[i] for name, rows in (*self.given.items(), *self.made.items())}

    def prepare(self) -> None:
        """Compute what the rounds of the block read, from what was written into it."""
        for name, rows in self._make().items():
            self.made[name].copy_(rows)

    def _make(self) -> dict[str, Tensor]:
        given, shape, board = self.given, self.shape, self._board
        n, R, B, k = shape.n, shape.R, shape.B, shape.width
        ids = board.walk[(given["start"][..., None] + self._record[:B]).flatten()].view(n, R, B)
        at = ids + (self._run * board.D)[:, None]
        columns = given["offset"][..., None] + self._record[:k]
        made = {
            "where": given["slot"] + self._run * shape.S,
            "x_at": (ids + (given["slot"] * board.D)[..., None]).flatten(1),
            "at": at.flatten(1),
            "columns": columns,
            "places": ((at * board.table.shape[1])[..., None] + columns[:, :, None]).flatten(1),
            "y": board.y[ids.flatten()].view(n, R, 1, B).repeat(1, 1, shape.points, 1),
            "step": given["eta"][..., None].to(self._dtype),
            "span": (2 * given["lam"] if shape.pairs else given["lam"])[..., None, None],
        }
        if "u" in given:
            shift = given["u"] * given["lam"][..., None, None].to(torch.float32)
            made["shift"] = torch.cat((-shift if shape.pairs else torch.zeros_like(shift[:, :, :1]), shift), 2)
        return made

    def found(self, C: Tensor) -> dict[str, Tensor]:
        """What the rounds of the block found: the numbers that came back, and how many records were clipped or zeroed.

        `C` [R] are the clips of the runs.
        """
        above = torch.linalg.vector_norm(self.out["differences"], dim=2) > C[:, None]
        zeroed = (~(self.out["peak"] <= LARGEST)).sum(2)
        return {"Delta": self.out["Delta"], "clipped": above.sum(2), "zeroed": zeroed}


def normalise(u: Tensor, flat: Flat) -> None:
    """Scale rows [..., d] of standard Gaussian numbers to norm sqrt(d), which makes them directions."""
    norms = torch.linalg.vector_norm(u, dim=-1, keepdim=True, dtype=torch.float64)
    u.mul_((math.sqrt(flat.d) / norms).to(u.dtype))
