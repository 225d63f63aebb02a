"""Step sizes over the rounds. Whatever is done with a released value is post-processing and costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dpzv.terms import Schedule
from dpzv.zo.directions import layout
from dpzv.zo.perturb import momentum_step, step

__all__ = ["Steps", "sgd_step", "trainable", "zo_step"]


@dataclass(frozen=True, slots=True)
class Steps:
    """How far weights move: a step size `eta`, its `schedule` over T rounds, and momentum."""

    eta: float
    momentum: float
    schedule: Schedule
    T: int

    def at(self, t: int) -> float:
        """The step size of round t: `eta`, or falling to 0. Rounds count from 1; 0 is before them all."""
        passed = (max(t, 1) - 1) / self.T
        if self.schedule == "linear":
            return self.eta * (1 - passed)
        if self.schedule == "cosine":
            return self.eta * (1 + math.cos(math.pi * passed)) / 2
        return self.eta


def trainable(module: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters that move, each once, in the order of a velocity."""
    return layout(module).parameters


def zo_step(module: torch.nn.Module, velocity: list[torch.Tensor], u: int, Delta: float, steps: Steps, t: int) -> None:
    """w <- w - eta * Delta * u in round t, with momentum where `steps` has some; `u` is a direction's seed."""
    if steps.momentum:
        momentum_step(module, velocity, u, Delta, eta=steps.at(t), momentum=steps.momentum)
    else:
        step(module, u, steps.at(t) * Delta)


@torch.no_grad()
def sgd_step(
    parameters: list[torch.Tensor],
    gradients: tuple[torch.Tensor, ...],
    velocity: list[torch.Tensor],
    steps: Steps,
    t: int,
) -> None:
    """w <- w - eta * gradient in round t, with momentum where `steps` has some."""
    if steps.momentum:
        torch._foreach_mul_(velocity, steps.momentum)
        torch._foreach_add_(velocity, gradients)
        gradients = tuple(velocity)
    torch._foreach_add_(parameters, gradients, alpha=-steps.at(t))
