"""What a method is: a rule for the devices and one for the server. `protocol/` carries what they exchange.

`declarations.py` lists the methods and the facts about each; a method's rules are found through its entry there.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.declarations import MethodFacts, method_facts
from dpzv.errors import PeerError
from dpzv.methods.heads import HeadRule
from dpzv.methods.steps import Directions, Steps, sgd_step, still
from dpzv.models.losses import Loss
from dpzv.terms import MethodName
from dpzv.validate import positive
from dpzv.zo.directions import layout

__all__ = [
    "Answer",
    "DeviceRule",
    "FirstOrder",
    "Question",
    "ServerRule",
    "Uplink",
    "check_length",
    "make_device_rule",
    "make_server_rule",
]

PART = 512
"""How many records go through a device's network at a time on a CPU, whose caches hold no more of them."""


class Answer(Struct, frozen=True):
    """What the server would return before its noise: each number is `totals[i] * grid / divisor`.

    With a clip `totals` are exact integers in units of `grid`; without one they are float64 and `grid` is 1. `divisor`
    is B where every number is a mean over the batch, 1 where every number belongs to one record. `clipped` is how many
    records were above the clip, where a method counts them; it stays at the server, since it has no noise.
    """

    totals: NDArray[np.int64] | NDArray[np.float64]
    grid: float
    divisor: int
    clipped: int = 0


class Question(Struct, frozen=True):
    """Device m's batch at `position` of its schedule, in round t, as the server's rule sees it.

    `rows` [B, k_1+...+k_M] are the table's rows of the batch, and `columns` are those of the asking device, which sent
    `h` for them: one or more embeddings [B, k]. `y` [B] are the labels. A record where `contributes` [B] is false adds
    0; `None` means that all contribute.
    """

    t: int
    m: int
    position: int
    rows: torch.Tensor
    columns: slice
    h: tuple[NDArray[np.float32], ...]
    y: torch.Tensor
    lam: float
    contributes: NDArray[np.bool_] | None = None

    def put(self, h: NDArray[np.float32]) -> None:
        """Set the asking device's columns of `rows` to `h`."""
        if self.rows.is_cpu:
            self.rows.numpy()[:, self.columns] = h  # torch's call costs more in a process that was just woken
        else:
            self.rows[:, self.columns] = torch.tensor(h, device=self.rows.device)


@dataclass(frozen=True, slots=True)
class Uplink:
    """Clips every embedding to norm `C_h` and adds noise of `sigma_h` to every entry; (inf, 0) changes nothing.

    ``gaussian(shape, stream)`` gives standard normal numbers; the stream names what they are for, and the name is a
    format of seeded runs.
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
        """`h`, detached, plus the noise of this stream."""
        h = h.detach()
        if not self.sigma_h:
            return h
        return h + self.sigma_h * torch.from_numpy(self.gaussian(tuple(h.shape), stream)).to(h.device, h.dtype)


class DeviceRule(ABC):
    """What device m does in a round. It holds w_m (`network`) and, with momentum, a velocity of the same size.

    Every method's rule is made from the same parts: directions u of w_m, named by a public stream, the smoothing
    radius lam, its step sizes (`steps`), and the protection of its embeddings on their way up (`uplink`).
    """

    def __init__(
        self, network: torch.nn.Module, *, m: int, seed: int, lam: float, steps: Steps, uplink: Uplink
    ) -> None:
        self.network = network
        self.velocity: list[torch.Tensor] = still(network) if steps.momentum else []
        self._m, self._seed, self._lam, self.steps, self._uplink = m, seed, lam, steps, uplink
        self._K = steps.K
        self._u = Directions(network, seed, "direction", m, K=steps.K)  # the stream's name is a format

    @abstractmethod
    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        """What the device sends for the batch `x` at `position` of its schedule: one or more embeddings [B, k]."""

    @abstractmethod
    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """Move w_m by the server's answer to the embeddings sent last; it was given in global round t."""

    def fill(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """Embeddings of the train records `x` from `start` on, for the first fill of the server's table.

        They are protected like all other embeddings of train records.
        """
        return self._uplink.noised(self.evaluate(x), "fill", self._m, start)

    @torch.no_grad()
    def evaluate(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings of test records, clipped like train records; they get no noise, since no claim protects them."""
        parts = torch.split(x, PART) if x.device.type == "cpu" else (x,)
        return self._uplink.clipped(torch.cat([self.network(part) for part in parts]))


class FirstOrder(DeviceRule):
    """Sends h, keeps its graph until the answer comes, and backpropagates the gradient that the answer gives for h."""

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
        parameters = layout(self.network).parameters
        sgd_step(parameters, torch.autograd.grad(h, parameters, g), self.velocity, self.steps, t)


@dataclass(frozen=True, slots=True)
class ServerRule(ABC):
    """What the server computes in a round; w_0 then moves by its `head_rule`.

    `C` clips one record's part of an answer, for each of the K directions of a message; infinity means no clip. `q` is
    the number of directions that a method draws if it perturbs embeddings, from streams of the public `seed`.
    """

    facts: MethodFacts
    head_rule: HeadRule
    loss: Loss
    C: float
    q: int
    seed: int
    K: int

    def __post_init__(self) -> None:
        positive("C", self.C)

    @property
    def head(self) -> torch.nn.Module:
        """The server's model w_0."""
        return self.head_rule.head

    @abstractmethod
    def answer(self, asked: Question) -> Answer:
        """The answer to a batch before its noise; nothing else that depends on labels leaves this function.

        On return `asked.rows` holds what the table keeps.
        """

    @property
    def arrays(self) -> int:
        """How many embeddings a device sends for a batch."""
        return self.facts.arrays(self.K)

    def numbers(self, B: int, width: int) -> int:
        """How many numbers come back for a batch of `B` records of a device whose embeddings have `width` numbers."""
        return self.facts.numbers(B, width, self.q, self.K, math.isfinite(self.C))


def make_device_rule(
    name: MethodName, network: torch.nn.Module, *, m: int, seed: int, lam: float, steps: Steps, uplink: Uplink
) -> DeviceRule:
    """What device m does under the method called `name`."""
    kind: type[DeviceRule] = _class_of(method_facts(name), "Device")
    return kind(network, m=m, seed=seed, lam=lam, steps=steps, uplink=uplink)


def make_server_rule(
    name: MethodName, head_rule: HeadRule, loss: Loss, C: float, *, q: int = 1, seed: int = 0, K: int = 1
) -> ServerRule:
    """What the server does under the method called `name`."""
    facts = method_facts(name)
    kind: type[ServerRule] = _class_of(facts, "Server")
    return kind(facts, head_rule, loss, C, q, seed, K)


def check_length(Delta: NDArray[np.float64], expected: int) -> None:
    """Refuse an answer of another length than the method's."""
    if len(Delta) != expected:
        raise PeerError(f"expected an answer of {expected} numbers, got {len(Delta)}; the link is closed.")


def _class_of(facts: MethodFacts, side: str) -> Any:
    """The class of one side of a method: in `vfl_czofo.py` they are VflCzofoDevice and VflCzofoServer."""
    name = "".join(part.capitalize() for part in facts.module.split("_"))
    return getattr(importlib.import_module(f"dpzv.methods.{facts.module}"), name + side)
