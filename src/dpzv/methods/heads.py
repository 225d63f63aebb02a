"""How the server's model w_0 moves. The choice is part of the privacy claim.

`joint-zo` and `frozen` move by released values or not at all, so the exact account covers them. `sgd` and
`zo` are the paper's printed choices; they use labels without noise, and every later Delta depends on them.
The private head `dp-sgd` has a file of its own. `declarations.py` lists them all.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.declarations import head_rule_facts
from dpzv.methods.steps import Directions, Steps, sgd_step, still, zo_step
from dpzv.models.head import Head, SumHead
from dpzv.models.losses import Loss
from dpzv.privacy.head_steps import HeadNoise, NoiseState
from dpzv.terms import HeadRuleName
from dpzv.zo.estimator import delta_zo
from dpzv.zo.perturb import perturbed, two_point

__all__ = ["Frozen", "HeadParts", "HeadRule", "JointZO", "OwnSGD", "OwnZO", "make_head_rule"]


class RowsById(Protocol):
    """Rows that are read by the numbers of their records: a tensor, or the rows in a file."""

    @property
    def device(self) -> torch.device:
        """The accelerator on which `ids` must be, and on which rows are."""

    def __getitem__(self, ids: torch.Tensor, /) -> torch.Tensor:
        """A copy of the rows `ids`."""


class HeadParts(Struct, frozen=True, kw_only=True):
    """What a head rule is made from; each rule takes what it needs.

    `table` [D, k_1+...+k_M] and `y` [D] are all records, and `noise` is what makes steps over them private; rules
    without private steps of their own take none of the three.
    """

    head: Head | SumHead
    loss: Loss
    steps: Steps
    seed: int
    lam: float
    table: RowsById | None = None
    y: torch.Tensor | None = None
    noise: HeadNoise | None = None


class HeadRule(ABC):
    """Where w_0 is evaluated in round t, and how it moves after that round's release.

    `velocity` has one tensor for each parameter if the rule keeps momentum, else none; `noise_state` is the state of
    the private noise. Both are part of a checkpoint. `shifts` says whether outputs may be those of a shifted w_0.
    """

    noise_state: NoiseState = ()
    shifts = False

    def __init__(self, parts: HeadParts) -> None:
        self.head, self.steps = parts.head, parts.steps
        self.velocity: list[torch.Tensor] = []

    def output(self, number: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        """The head's output [B, n] for `rows`, at w_0.

        A rule may shift w_0 by `offset` (+lam, -lam or 0) along its direction `number`, which is t*K + j for direction
        j of the K in round t.
        """
        output: torch.Tensor = self.head(rows)
        return output

    def outputs(
        self, first: int, rows: torch.Tensor, columns: slice, h: Sequence[NDArray[np.float32]], lam: float
    ) -> Iterator[torch.Tensor]:
        """The outputs for `rows`, whose `columns` hold `h[0]`, then those with `h[1]`, `h[2]` and so on in its place.

        For all but the first, a rule may shift w_0 by `lam` along its directions, numbered from `first` on.
        """
        return self.head.along(rows, columns, (_step(h[0], h_j).to(rows.device) for h_j in h[1:]))

    @abstractmethod
    def move(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """Move w_0 after round t released the numbers `Delta` for the batch `rows`, `y`.

        `steps` is how many private steps of its own the gate admitted; rules without such steps get 0.
        """


class Frozen(HeadRule):
    """w_0 never moves: it depends on no record."""

    def move(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """Do nothing."""


class _Moving(HeadRule):
    """What the three rules without private steps share: a step size, momentum and directions of w_0."""

    def __init__(self, parts: HeadParts) -> None:
        super().__init__(parts)
        # the number 0 stands for the server, so no device has these directions; the stream's name is a format
        self._u = Directions(parts.head, parts.seed, "direction", 0)
        self._loss, self._lam = parts.loss, parts.lam
        self.velocity = still(parts.head) if parts.steps.momentum else []


class JointZO(_Moving):
    """w_0 and w_m are perturbed in the same evaluations and both move by the released Delta."""

    shifts = True

    def output(self, number: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        """The head at w_0 + offset*u_0."""
        if not offset:
            return super().output(number, rows, offset)
        with perturbed(self._u(number), offset):
            return super().output(number, rows, offset)

    def outputs(
        self, first: int, rows: torch.Tensor, columns: slice, h: Sequence[NDArray[np.float32]], lam: float
    ) -> Iterator[torch.Tensor]:
        """The head at w_0 for `h[0]`, and at w_0 + lam*u_0j for `h[j]`, which reads all columns each time."""
        yield self.output(first, rows, 0.0)
        rows = rows.clone()
        for j, h_j in enumerate(h[1:]):
            rows[:, columns] = torch.tensor(h_j, device=rows.device)
            yield self.output(first + j, rows, lam)

    def move(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """w_0 <- w_0 - eta_0 * (1/K) * sum_j Delta_j * u_0j: uses nothing but the K released numbers."""
        zo_step(self.velocity, self._u, t * len(Delta), Delta, self.steps, t)


class OwnZO(_Moving):
    """The paper's option i): a zeroth-order step with a difference of the server's own, without noise."""

    @torch.no_grad()
    def move(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """w_0 <- w_0 - eta_0 * mean(delta_zo of w_0) * u_0."""
        plus, minus = two_point(self.head, rows, self._u(t), self._lam)
        f_plus, f_minus = self._loss(plus, y), self._loss(minus, y)
        mean = np.nan_to_num(delta_zo(f_plus, f_minus, self._lam), posinf=0.0, neginf=0.0).mean()
        zo_step(self.velocity, self._u, t, np.array([mean]), self.steps, t)


class OwnSGD(_Moving):
    """The paper's option ii): stochastic gradient descent on the batch, without noise."""

    def move(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """w_0 <- w_0 - eta_0 * gradient of the batch's mean loss."""
        parameters: list[torch.Tensor] = list(self.head.parameters())
        with torch.enable_grad():
            gradients = torch.autograd.grad(self._loss(self.head(rows), y).mean(), parameters)
        sgd_step(parameters, gradients, self.velocity, self.steps, t)


def _step(h: NDArray[np.float32], h_j: NDArray[np.float32]) -> torch.Tensor:
    """The steps from embeddings `h` to `h_j`; a row with a number that is not finite has a step that is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(h_j - h)


def make_head_rule(name: HeadRuleName, parts: HeadParts) -> HeadRule:
    """The rule called `name`, made from `parts`; a rule that is not declared is refused."""
    file, _, kind = head_rule_facts(name).place.partition(".")
    rule: HeadRule = getattr(importlib.import_module(f"dpzv.methods.{file}"), kind)(parts)
    return rule
