"""One round of several runs as operations on tensors of fixed shapes, for every method: what a CUDA graph can replay.

`methods/` is the reference, and tests compare the two. Nothing here looks at a number from Python: the device of a
round, its batch, directions, noise and steps come from a row of a tape (`fused_tape.py`) that the host wrote before.
Sums are plain float64, not integers on a grid: the noise is simulated, so that nothing is released from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpzv.protocol.bounds import LARGEST
from dpzv.runtime.fused_devices import Kin
from dpzv.runtime.fused_head import Heads
from dpzv.runtime.fused_tape import Board, Tape
from dpzv.terms import HeadRuleName

__all__ = ["Batch", "Knobs", "Round", "clipped"]


@dataclass(frozen=True, slots=True)
class Knobs:
    """What may differ from run to run, [R] each, and what may not.

    `C` clips one record's answer, over all K directions together; `C_h` clips embeddings; `lam_0` is the radius of the
    head's own steps; `momentum` and `momentum_0` are those of devices and head; `C_0` clips a record's gradient in w_0.
    """

    C: Tensor
    C_h: Tensor
    lam_0: Tensor
    momentum: Tensor
    momentum_0: Tensor
    C_0: Tensor
    B: int
    head_rule: HeadRuleName
    losses_back: bool
    head_batch: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A round's device and batch in every run: the tape's row, the device's weights, features and table rows."""

    row: dict[str, Tensor]
    out: dict[str, Tensor]
    w: Tensor
    x: Tensor
    rows: Tensor

    def put(self, h: Tensor) -> Tensor:
        """The table's rows [R, P, B, ...] with the device's columns replaced by `h` [R, P, B, k]."""
        R, P, B, k = h.shape
        rows = self.rows[:, None].expand(R, P, B, self.rows.shape[2])
        return rows.scatter(3, self.row["columns"][:, None, None].expand(R, P, B, k), h)

    def labels(self, P: int) -> Tensor:
        """The labels [R*P*B] for P points of every run."""
        return self.row["y"][:, :P].flatten()


def clipped(rows: Tensor, C: Tensor, keep: Tensor, dim: int) -> Tensor:
    """Each record's numbers along `dim` of `rows`, scaled to norm `C` if they are longer.

    They are 0 if one of them is not finite, or where `keep` is 0. `C` and `keep` have one number along `dim`.
    """
    if rows.shape[dim] == 1:
        return rows.nan_to_num(0.0, 0.0, 0.0).clamp(-C, C) * keep
    norms: Tensor = torch.linalg.vector_norm(rows, dim=dim, keepdim=True)
    size = (C / norms).clamp(max=1.0) * keep
    return rows.nan_to_num(0.0, 0.0, 0.0) * size.nan_to_num(0.0)


class Round:
    """A round of devices of one architecture; a subclass for each method says what is sent and answered."""

    def __init__(self, kin: Kin, heads: Heads, board: Board, knobs: Knobs, tape: Tape) -> None:
        self.kin, self.heads, self.board, self.knobs, self.tape = kin, heads, board, knobs, tape
        self.C = knobs.C[:, None, None]
        self._falls = knobs.momentum[:, None].to(kin.w.dtype)
        self._C_h = knobs.C_h[:, None, None, None].to(kin.w.dtype)

    def __call__(self, i: int) -> None:
        """Advance all runs by the round in row i of the tape."""
        with torch.no_grad():
            row, R = self.tape.row(i), self.board.R
            x = self.kin.x.index_select(0, row["x_at"])
            rows = self.board.table.index_select(0, row["at"])
            w = self.kin.w.index_select(0, row["where"])
            out = {name: found[i] for name, found in self.tape.out.items()}
            self.play(Batch(row, out, w, x.view(R, -1, *x.shape[1:]), rows.view(R, -1, rows.shape[1])))

    def play(self, batch: Batch) -> None:
        """One round on `batch`."""
        raise NotImplementedError

    def _received(self, batch: Batch, h: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [R, P, B, k] as the server takes them, and which records [R, 1, B] are within the public bound."""
        peak = torch.linalg.vector_norm(h, ord=math.inf, dim=(1, 3), out=batch.out["peak"])
        kept = (peak <= LARGEST)[:, None]  # false for nan, which a norm hands on
        return torch.where(kept[..., None], h, 0.0), kept

    def _bounded(self, h: Tensor) -> Tensor:
        """`h` [R, P, B, k] clipped to norm C_h, where embeddings get noise on their way up."""
        if "up" not in self.tape.given:
            return h
        norms: Tensor = torch.linalg.vector_norm(h, dim=3, keepdim=True)
        return h * (self._C_h / norms.clamp(min=self._C_h))

    def _sent(self, batch: Batch, h: Tensor) -> Tensor:
        """`h` [R, P, B, k] with the noise that embeddings get on their way up, if there is any."""
        return h + batch.row["up"].to(h.dtype) if "up" in batch.row else h

    def _keep(self, batch: Batch, h: Tensor) -> None:
        """Store the device's embeddings `h` [R, B, k] in the table."""
        self.board.table.view(-1).scatter_(0, batch.row["places"], h.flatten())

    def _along(self, batch: Batch, Delta: Tensor) -> Tensor:
        """(1/K) * sum_j Delta_j * u_j [R, d], in the type of the weights."""
        return _mean_along(Delta, batch.row["u"].to(batch.w.dtype))

    def _step(self, batch: Batch, direction: Tensor) -> None:
        """w_m <- w_m - eta_m * direction, with momentum where the runs have it."""
        kin, where = self.kin, batch.row["where"]
        if kin.velocity.numel():
            direction = torch.addcmul(direction, self._falls, kin.velocity.index_select(0, where))
            kin.velocity.index_copy_(0, where, direction)
        kin.w.index_copy_(0, where, torch.addcmul(batch.w.detach(), batch.row["step"], direction, value=-1))

    def _move_head(self, batch: Batch, Delta: Tensor, kept: Tensor) -> None:
        """Move w_0 by the rules that use the round's own batch; `kept` [R, B, k] is what the table keeps of it."""
        rule, heads = self.knobs.head_rule, self.heads
        if rule == "joint-zo":
            self._step_head(batch, _mean_along(Delta, batch.row["u_0"].to(heads.w.dtype)))
        elif rule == "zo":
            shift = self._shift_0(batch, self.knobs.lam_0)
            w = torch.cat((heads.w[:, None] + shift, heads.w[:, None] - shift), 1)
            f = heads.losses(heads.outputs(batch.put(torch.stack((kept, kept), 1)), w), batch.labels(2)).double()
            terms = ((f[:, 0] - f[:, 1]) / (2 * self.knobs.lam_0[:, None])).nan_to_num(0.0, 0.0, 0.0)
            self._step_head(batch, _mean_along(terms.mean(1, keepdim=True), batch.row["u_0"].to(heads.w.dtype)))
        elif rule == "sgd":
            with torch.enable_grad():
                w = heads.w[:, None].clone().requires_grad_()
                losses = heads.losses(heads.outputs(batch.put(kept[:, None]), w), batch.labels(1))
                (gradient,) = torch.autograd.grad(losses.mean(2).sum(), w)
            self._step_head(batch, gradient[:, 0])

    def _shift_0(self, batch: Batch, lam: Tensor) -> Tensor:
        """lam * u_0 [R, K, d_0], rounded to float32 as the reference does."""
        return batch.row["u_0"] * lam[:, None, None].to(torch.float32)

    def _step_head(self, batch: Batch, direction: Tensor) -> None:
        heads = self.heads
        heads.velocity.mul_(self.knobs.momentum_0[:, None].to(heads.w.dtype)).add_(direction)
        heads.w.sub_(batch.row["eta_0"][:, None].to(heads.w.dtype) * heads.velocity)


def _mean_along(Delta: Tensor, u: Tensor) -> Tensor:
    """(1/K) * sum_j Delta_j * u_j [R, d], for Delta [R, K] and u [R, K, d]."""
    K = Delta.shape[1]
    if K == 1:
        return Delta.to(u.dtype) * u[:, 0]
    return torch.bmm((Delta / K).to(u.dtype)[:, None], u)[:, 0]
