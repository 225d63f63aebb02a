"""What each method sends and answers in a fused round; the reference for each is its file in `methods/`."""

from __future__ import annotations

import torch
from torch import Tensor

from dpzv.runtime.fused_round import Batch, Round, clipped
from dpzv.terms import MethodName

__all__ = ["ROUNDS"]


class DpzvRound(Round):
    """h_minus and h_plus, or h and h_1 .. h_K; K numbers come back."""

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
        if self.knobs.head_rule == "joint-zo":
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
