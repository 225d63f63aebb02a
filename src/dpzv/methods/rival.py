"""What the published rivals share: how they protect what they send, and how two of them backpropagate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.methods.rules import DeviceRule
from dpzv.methods.steps import Steps, sgd_step, still, trainable

__all__ = ["FirstOrder", "Rival", "Uplink"]


@dataclass(frozen=True, slots=True)
class Uplink:
    """Every embedding clipped to norm `C_h`, then noise of `sigma_h` on every entry; (inf, 0) sends it as it is.

    ``gaussian(shape, stream)`` gives standard normal numbers; the stream names what they are for.
    """

    C_h: float
    sigma_h: float
    gaussian: Callable[[tuple[int, ...], tuple[int | str, ...]], NDArray[np.float64]]

    def clipped(self, h: torch.Tensor) -> torch.Tensor:
        """Rows of `h` [B, k], scaled to norm `C_h` where they are longer; gradients pass through."""
        if math.isinf(self.C_h):
            return h
        norms: torch.Tensor = torch.linalg.vector_norm(h, dim=1, keepdim=True)
        return h * (self.C_h / norms.clamp(min=self.C_h))

    def noised(self, h: torch.Tensor, *stream: int | str) -> torch.Tensor:
        """`h`, detached, plus noise of its own for this stream."""
        h = h.detach()
        if not self.sigma_h:
            return h
        return h + self.sigma_h * torch.from_numpy(self.gaussian(tuple(h.shape), stream)).to(h.device, h.dtype)


class Rival(DeviceRule):
    """A device whose embeddings may be protected on their way up."""

    def __init__(
        self, network: torch.nn.Module, *, m: int, seed: int, lam: float, steps: Steps, uplink: Uplink
    ) -> None:
        self.network = network
        self.velocity = still(network) if steps.momentum else []
        self._m, self._seed, self._lam, self._steps, self._uplink = m, seed, lam, steps, uplink

    def fill(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """h of train records, protected as any other."""
        return self._uplink.noised(self._uplink.clipped(super().evaluate(x)), "fill", self._m, start)

    def evaluate(self, x: torch.Tensor) -> torch.Tensor:
        """h of test records, clipped like those trained on; they are protected nowhere, so without noise."""
        return self._uplink.clipped(super().evaluate(x))


class FirstOrder(Rival):
    """Sends h, keeps its graph until the answer comes, and backpropagates what that says about h."""

    _h: torch.Tensor | None = None

    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        """h [B, k], clipped and noised where the uplink is protected."""
        with torch.enable_grad():
            self._h = self._uplink.clipped(self.network(x))
        return (self._uplink.noised(self._h, "uplink", self._m, position),)

    def sent(self) -> torch.Tensor:
        """The embeddings sent last, with their graph; an answer uses them up."""
        assert self._h is not None
        h, self._h = self._h, None
        return h

    def backpropagate(self, h: torch.Tensor, g: torch.Tensor, t: int) -> None:
        """w_m <- w_m - eta_m * gradient, where `g` [B, k] is the gradient of the batch's mean loss in `h`."""
        parameters = trainable(self.network)
        sgd_step(parameters, torch.autograd.grad(h, parameters, g), self.velocity, self._steps, t)
