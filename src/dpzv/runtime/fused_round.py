"""One round of several runs as operations on tensors of fixed shapes, for every method: what a CUDA graph can replay.

`methods/` is the reference, and tests compare the two. Nothing here looks at a number from Python: the device of a
round, its batch, directions, noise and steps come from a row of a tape (`fused_tape.py`) that was written before.
Sums are plain float64, not integers on a grid: the noise is simulated, so that nothing is released from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpzv.declarations import head_rule_facts
from dpzv.protocol.bounds import LARGEST
from dpzv.runtime.fused_board import Board, Knobs
from dpzv.runtime.fused_devices import Kin
from dpzv.runtime.fused_head import Heads
from dpzv.runtime.fused_tape import Tape
from dpzv.terms import HeadRuleName, MethodName

__all__ = ["HEAD_MOVES", "ROUNDS", "in_halves"]


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


def in_halves(h: Tensor, lam: Tensor) -> Tensor:
    """Embeddings [R, P, B, k] as the codec float16 carries them (`protocol/codec.py`), with the radius `lam` [R].

    One embedding and slopes are sent in half precision: of two points the midpoint, of more the first one.
    """

    def half(numbers: Tensor) -> Tensor:
        return numbers.half().to(h.dtype)

    first, others, radius = h[:, :1], h[:, 1:], lam.to(h.dtype)[:, None, None, None]
    if h.shape[1] == 2:
        middle, part = half((first + others) * 0.5), half((others - first) / (radius + radius)) * radius
        return torch.cat((middle - part, middle + part), 1)
    sent = half(first)
    return torch.cat((sent, half((others - first) / radius) * radius + sent), 1)


class Round:
    """A round of devices of one architecture; a subclass for each method says what is sent and answered.

    `walks` says whether devices move along directions u of their weights, and `perturbs` whether the server perturbs
    embeddings in q directions: the tape then has them.
    """

    walks = False
    perturbs = False

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
        h = in_halves(h, batch.row["lam"]) if self.knobs.halves else h
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
        HEAD_MOVES[self.knobs.head_rule].play(self, batch, Delta, kept)

    def head_by_answer(self, batch: Batch, Delta: Tensor, kept: Tensor) -> None:
        """w_0 moves along its directions by the released numbers."""
        self._step_head(batch, _mean_along(Delta, batch.row["u_0"].to(self.heads.w.dtype)))

    def head_by_difference(self, batch: Batch, Delta: Tensor, kept: Tensor) -> None:
        """w_0 moves along a direction by a difference of the server's own."""
        heads, shift = self.heads, self._shift_0(batch, self.knobs.lam_0)
        w = torch.cat((heads.w[:, None] + shift, heads.w[:, None] - shift), 1)
        f = heads.losses(heads.outputs(batch.put(torch.stack((kept, kept), 1)), w), batch.labels(2)).double()
        terms = ((f[:, 0] - f[:, 1]) / (2 * self.knobs.lam_0[:, None])).nan_to_num(0.0, 0.0, 0.0)
        self._step_head(batch, _mean_along(terms.mean(1, keepdim=True), batch.row["u_0"].to(heads.w.dtype)))

    def head_by_gradient(self, batch: Batch, Delta: Tensor, kept: Tensor) -> None:
        """w_0 moves by the gradient of the batch's mean loss."""
        heads = self.heads
        with torch.enable_grad():
            w = heads.w[:, None].clone().requires_grad_()
            losses = heads.losses(heads.outputs(batch.put(kept[:, None]), w), batch.labels(1))
            (gradient,) = torch.autograd.grad(losses.mean(2).sum(), w)
        self._step_head(batch, gradient[:, 0])

    def head_stays(self, batch: Batch, Delta: Tensor, kept: Tensor) -> None:
        """w_0 does not move by the round's own batch; the steps of a private head are computed apart."""

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


class DpzvRound(Round):
    """h_minus and h_plus, or h and h_1 .. h_K; K numbers come back."""

    walks = True

    def play(self, batch: Batch) -> None:
        """One round of `methods/dpzv.py`."""
        points = batch.w[:, None] + batch.row["shift"]
        h, kept = self._received(batch, self.kin.embeddings(points, batch.row["where"], batch.x))
        f = self._losses(batch, h).double()
        differences = torch.div(f[:, 1:] - f[:, :1], batch.row["span"], out=batch.out["differences"])
        terms = clipped(differences, self.C, kept, 1)
        keeps = h.mean(1) if self.tape.K == 1 else h[:, 0]
        self._keep(batch, keeps)
        Delta = torch.add(terms.mean(2), batch.row["noise"], out=batch.out["Delta"])
        self._move_head(batch, Delta, keeps)
        self._step(batch, self._along(batch, Delta))

    def _losses(self, batch: Batch, h: Tensor) -> Tensor:
        """The losses [R, K+1, B] at all embeddings; a joint head is shifted with them."""
        heads, K, P = self.heads, self.tape.K, h.shape[1]
        if head_rule_facts(self.knobs.head_rule).two_points:
            shift = self._shift_0(batch, batch.row["lam"])
            first = heads.w[:, None] - shift if K == 1 else heads.w[:, None]
            w = torch.cat((first, heads.w[:, None] + shift), 1)
            return heads.losses(heads.outputs(batch.put(h), w), batch.labels(P))
        if K == 1:
            return heads.losses(heads.outputs(batch.put(h)), batch.labels(P))
        outputs = heads.along(batch.put(h[:, :1])[:, 0], batch.row["columns"], h[:, 1:] - h[:, :1])
        return heads.losses(outputs, batch.labels(P))


class ZooVflRound(Round):
    """h and h_plus; a difference comes back, or two losses."""

    walks = True

    def play(self, batch: Batch) -> None:
        """One round of `methods/zoo_vfl.py`."""
        points, lam = batch.w[:, None] + batch.row["shift"], batch.row["lam"]
        own = self._bounded(self.kin.embeddings(points, batch.row["where"], batch.x))
        h, kept = self._received(batch, self._sent(batch, own))
        f = self.heads.losses(self.heads.outputs(batch.put(h)), batch.labels(2)).double()
        if self.knobs.losses_back:
            usable = f.isfinite().all(1, keepdim=True) & kept
            means = torch.where(usable, f, 0.0).mean(2)
        else:
            means = clipped((f[:, 1:] - f[:, :1]) / batch.row["span"], self.C, kept, 1).mean(2)
        Delta = torch.add(means, batch.row["noise"], out=batch.out["Delta"])
        self._keep(batch, h[:, 0])
        self._move_head(batch, Delta, h[:, 0])
        moves = (Delta[:, 1:] - Delta[:, :1]) / lam[:, None] if self.knobs.losses_back else Delta
        self._step(batch, self._along(batch, moves))


class _FirstOrderRound(Round):
    """h goes up, and what comes back about it is backpropagated."""

    def play(self, batch: Batch) -> None:
        """One round of `methods/vafl.py` or `methods/vfl_czofo.py`."""
        with torch.enable_grad():
            w = batch.w.requires_grad_()
            own = self._bounded(self.kin.embeddings(w[:, None], batch.row["where"], batch.x))[:, 0]
        h, kept = self._received(batch, self._sent(batch, own.detach()[:, None]))
        means = self.answer(batch, h, kept)
        self._keep(batch, h[:, 0])
        Delta = torch.add(means, batch.row["noise"], out=batch.out["Delta"])
        self._move_head(batch, Delta, h[:, 0])
        (gradient,) = torch.autograd.grad(own, w, self.slope(batch, Delta).to(own.dtype))
        self._step(batch, gradient)

    def answer(self, batch: Batch, h: Tensor, kept: Tensor) -> Tensor:
        """The numbers [R, N] that come back, before their noise."""
        raise NotImplementedError

    def slope(self, batch: Batch, Delta: Tensor) -> Tensor:
        """The gradient [R, B, k] in h that the device takes from the answer."""
        raise NotImplementedError


class VaflRound(_FirstOrderRound):
    """Every record's gradient comes back."""

    def answer(self, batch: Batch, h: Tensor, kept: Tensor) -> Tensor:
        """Gradients [R, B*k], each record's clipped to norm C."""
        with torch.enable_grad():
            inputs = batch.put(h).requires_grad_()
            losses = self.heads.losses(self.heads.outputs(inputs), batch.labels(1))
            (gradients,) = torch.autograd.grad(losses.sum(), inputs)
        R, B, k = h[:, 0].shape
        own = gradients[:, 0].gather(2, batch.row["columns"][:, None].expand(R, B, k)).double()
        return clipped(own, self.C, kept.transpose(1, 2), 2).flatten(1)

    def slope(self, batch: Batch, Delta: Tensor) -> Tensor:
        """The released gradients over B."""
        return Delta.view(len(Delta), self.knobs.B, -1).to(batch.w.dtype) / self.knobs.B


class VflCzofoRound(_FirstOrderRound):
    """q differences in directions of the embeddings come back."""

    perturbs = True

    def answer(self, batch: Batch, h: Tensor, kept: Tensor) -> Tensor:
        """q means over the batch [R, q], each record's q differences clipped together."""
        moved = h + batch.row["lam"][:, None, None, None].to(torch.float32) * batch.row["v"]
        points = torch.cat((h, moved), 1)
        f = self.heads.losses(self.heads.outputs(batch.put(points)), batch.labels(points.shape[1])).double()
        return clipped((f[:, 1:] - f[:, :1]) / batch.row["span"], self.C, kept, 1).mean(2)

    def slope(self, batch: Batch, Delta: Tensor) -> Tensor:
        """(1/q) * sum_j difference_j * v_j."""
        parts = (Delta / Delta.shape[1]).to(torch.float32)[:, :, None, None] * batch.row["v"]
        return parts.to(batch.w.dtype).sum(1)


ROUNDS: dict[MethodName, type[Round]] = {
    "dpzv": DpzvRound,
    "zoo-vfl": ZooVflRound,
    "vafl": VaflRound,
    "vfl-czofo": VflCzofoRound,
}
"""The methods that have a fused round."""


@dataclass(frozen=True, slots=True)
class HeadMove:
    """How w_0 moves by a round's own batch: along so many `directions`, by K, from the losses at `points` points."""

    directions: Callable[[int], int]
    points: int
    play: Callable[[Round, Batch, Tensor, Tensor], None]


HEAD_MOVES: dict[HeadRuleName, HeadMove] = {
    "joint-zo": HeadMove(lambda K: K, 1, Round.head_by_answer),
    "zo": HeadMove(lambda K: 1, 2, Round.head_by_difference),
    "sgd": HeadMove(lambda K: 0, 1, Round.head_by_gradient),
    "dp-sgd": HeadMove(lambda K: 0, 1, Round.head_stays),
    "frozen": HeadMove(lambda K: 0, 1, Round.head_stays),
}
"""The head rules that have a fused step."""
