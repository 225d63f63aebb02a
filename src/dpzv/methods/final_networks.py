"""How the final head is fitted as a network: by Adam, on standardised columns, without noise.

Gradients are written out here: for layers of some hundred units and batches of some hundred records, torch's autograd
spends several times as long on its bookkeeping as on the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from msgspec import Struct
from torch import Tensor

from dpzv.methods.final_fits import Sample, standardisation
from dpzv.models.final_head import FinalHead
from dpzv.rng import torch_generator

__all__ = ["Network", "network_head"]


class Network(Struct, frozen=True):
    """A network that the final head may be: widths of its hidden layers, and how much its weights decay."""

    name: str
    hidden: tuple[int, ...]
    decay: float
    eta: float = 2e-3


@torch.no_grad()
def network_head(one: Network, part: Sample, seed: int, steps: int) -> FinalHead:
    """The network fitted by `steps` of Adam to batches of 2*sqrt(n) of the n records of `part`.

    The names of the random streams are a format of seeded runs.
    """
    widths = (part.rows.shape[1], *one.hidden, part.outputs)
    head = FinalHead.seeded(widths, torch_generator(seed, "head", "final", one.name)).to(part.rows.device)
    head.mean, head.scale = standardisation(part.rows, part.ids)
    fit = _Fit(head, one.decay)
    for t, ids in enumerate(_batches(part.ids, seed, steps)):
        fit.differentiate(part, ids)
        fit.step(one.eta * 0.5 * (1 + math.cos(math.pi * t / steps)))  # falls to 0 along a cosine
    return fit.head()


def _batches(ids: Tensor, seed: int, steps: int) -> Iterator[Tensor]:
    """`steps` batches of 2*sqrt(n) of the n `ids`; every pass has an order of its own."""
    n, order = len(ids), ids
    batch = min(n, math.ceil(2 * math.sqrt(n)))
    for t in range(steps):
        at = t % (n // batch)
        if at == 0:
            drawn = torch.randperm(n, generator=torch_generator(seed, "refit", t))
            order = ids[drawn.to(ids.device)]
        yield order[at * batch : (at + 1) * batch]


class _Fit:
    """A network while it is fitted. All weights are in one vector, and so are gradients and each of Adam's averages."""

    def __init__(self, head: FinalHead, decay: float) -> None:
        self._head, self._decay, self._t = head, decay, 0
        self.w = torch.cat([w.detach().flatten() for w in head.parameters()])
        self.g, self._m, self._v = (torch.zeros_like(self.w) for _ in range(3))
        self._views, self._g_views = self._viewed(self.w), self._viewed(self.g)

    def _viewed(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The weight and the bias of every layer, as parts of the vector `flat`; it has the order of the parameters."""
        parts, start = [], 0
        for w in self._head.parameters():
            parts.append(flat[start : start + w.numel()].view_as(w))
            start += w.numel()
        return list(zip(parts[0::2], parts[1::2], strict=True))

    def head(self) -> FinalHead:
        """The network with the weights as they are now."""
        torch.nn.utils.vector_to_parameters(self.w, self._head.parameters())
        return self._head

    def differentiate(self, part: Sample, ids: Tensor) -> None:
        """Let `g` be the gradient of the mean loss of the records `ids`."""
        inputs = [(part.rows[ids] - self._head.mean) * self._head.scale]
        *hidden, (weight, bias) = self._views
        for inner, shift in hidden:
            inputs.append(torch.addmm(shift, inputs[-1], inner.T).relu_())
        g = part.slope(torch.addmm(bias, inputs[-1], weight.T), ids).div_(len(ids))
        for x, (weight, _), (g_weight, g_bias) in zip(
            inputs[::-1], self._views[::-1], self._g_views[::-1], strict=True
        ):
            torch.mm(g.T, x, out=g_weight)
            torch.sum(g, 0, out=g_bias)
            if x is not inputs[0]:
                g = (g @ weight).mul_(x > 0)

    def step(self, eta: float, first: float = 0.9, second: float = 0.999) -> None:
        """Move along the gradient by Adam, with the weight decay of a squared norm in the loss."""
        self._t += 1
        g = self.g.add_(self.w, alpha=self._decay) if self._decay else self.g
        self._m.lerp_(g, 1 - first)
        self._v.mul_(second).addcmul_(g, g, value=1 - second)
        size = self._v.sqrt().div_(math.sqrt(1 - second**self._t)).add_(1e-8)
        self.w.addcdiv_(self._m, size, value=-eta / (1 - first**self._t))
