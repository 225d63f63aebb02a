"""How the server's model w_0 moves: a choice of its own, and part of the privacy claim.

`joint-zo` and `frozen` move by released values or not at all, so the exact account covers them. `sgd` and
`zo` are the paper's printed choices; they use labels without noise, and every later Delta carries that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from dpzv.errors import ConfigError
from dpzv.methods.steps import Directions, Steps, sgd_step, still, zo_step
from dpzv.models.losses import Loss
from dpzv.terms import HeadRuleName
from dpzv.zo.estimator import delta_zo
from dpzv.zo.perturb import perturbed, two_point

__all__ = ["Frozen", "HeadRule", "JointZO", "OwnSGD", "OwnZO", "make_head_rule"]


class HeadRule(ABC):
    """Where w_0 is evaluated in round t, and how it moves after that round's release."""

    velocity: list[torch.Tensor]
    """One tensor a parameter with momentum, else empty; part of a checkpoint."""

    @abstractmethod
    def output(self, t: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        """The head's output [B, n] for `rows` as round t evaluates it; `offset` is +lam or -lam."""

    @abstractmethod
    def move(self, t: int, Delta: float, rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """Move w_0 after round t released `Delta` for the batch `rows`, `y`.

        `steps` is how many private steps of its own the gate admitted; only `dp-sgd` has any.
        """


class Frozen(HeadRule):
    """w_0 never moves: it depends on no record."""

    def __init__(self, head: torch.nn.Module) -> None:
        self.head = head
        self.velocity = []

    def output(self, t: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        """The head at w_0."""
        output: torch.Tensor = self.head(rows)
        return output

    def move(self, t: int, Delta: float, rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """Do nothing."""


class _Moving(Frozen):
    """What the three rules that move share: a step size, momentum and a seed for directions."""

    def __init__(self, head: torch.nn.Module, steps: Steps, seed: int) -> None:
        super().__init__(head)
        self._u, self._steps = Directions(head, seed, "direction", 0), steps
        self.velocity = still(head) if steps.momentum else []

    def _zo_step(self, t: int, Delta: float) -> None:
        zo_step(self.velocity, self._u(t), Delta, self._steps, t)


class JointZO(_Moving):
    """w_0 and w_m are perturbed in the same evaluation and both move by the one released Delta."""

    def output(self, t: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        """The head at w_0 + offset*u_0."""
        with perturbed(self._u(t), offset):
            return super().output(t, rows, offset)

    def move(self, t: int, Delta: float, rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """w_0 <- w_0 - eta_0 * Delta * u_0: uses nothing but the released value."""
        self._zo_step(t, Delta)


class OwnZO(_Moving):
    """The paper's option i): a zeroth-order step with a difference of the server's own, without noise."""

    def __init__(self, head: torch.nn.Module, steps: Steps, seed: int, loss: Loss, lam: float) -> None:
        super().__init__(head, steps, seed)
        self._loss, self._lam = loss, lam

    @torch.no_grad()
    def move(self, t: int, Delta: float, rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """w_0 <- w_0 - eta_0 * mean(delta_zo of w_0) * u_0."""
        plus, minus = two_point(self.head, rows, self._u(t), self._lam)
        f_plus, f_minus = self._loss(plus, y), self._loss(minus, y)
        self._zo_step(t, float(np.nan_to_num(delta_zo(f_plus, f_minus, self._lam), posinf=0.0, neginf=0.0).mean()))


class OwnSGD(_Moving):
    """The paper's option ii): stochastic gradient descent on the batch, without noise."""

    def __init__(self, head: torch.nn.Module, steps: Steps, seed: int, loss: Loss) -> None:
        super().__init__(head, steps, seed)
        self._loss = loss

    def move(self, t: int, Delta: float, rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """w_0 <- w_0 - eta_0 * gradient of the batch's mean loss."""
        parameters: list[torch.Tensor] = list(self.head.parameters())
        with torch.enable_grad():
            gradients = torch.autograd.grad(self._loss(self.head(rows), y).mean(), parameters)
        sgd_step(parameters, gradients, self.velocity, self._steps, t)


def make_head_rule(
    name: HeadRuleName, head: torch.nn.Module, loss: Loss, *, lam: float, steps: Steps, seed: int
) -> HeadRule:
    """The rule called `name` for this head; `dp-sgd` is not among them, since it needs the table."""
    if name == "frozen":
        return Frozen(head)
    if name == "joint-zo":
        return JointZO(head, steps, seed)
    if name == "zo":
        return OwnZO(head, steps, seed, loss, lam)
    if name != "sgd":  # fail closed: an unknown rule must not become the one without noise
        raise ConfigError(f"head rule '{name}' is not one that needs no table; choose frozen, joint-zo, zo or sgd.")
    return OwnSGD(head, steps, seed, loss)
