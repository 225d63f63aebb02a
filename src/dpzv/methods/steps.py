"""Step sizes, directions and steps. Whatever is done with a released value is post-processing and costs no budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dpzv.rng import seed_of
from dpzv.terms import Schedule
from dpzv.zo.directions import Direction, layout
from dpzv.zo.perturb import momentum_step, step

__all__ = ["Directions", "Steps", "sgd_step", "still", "zo_step"]


@dataclass(frozen=True, slots=True)
class Steps:
    """How far weights move: a step size `eta`, its `schedule` over T rounds, and momentum."""

    eta: float
    momentum: float
    schedule: Schedule
    T: int

    def at(self, t: int) -> float:
        """The step size of round t: `eta`, or less if the schedule falls to 0. Rounds count from 1; 0 is the start."""
        passed = (max(t, 1) - 1) / self.T
        if self.schedule == "linear":
            return self.eta * (1 - passed)
        if self.schedule == "cosine":
            return self.eta * (1 + math.cos(math.pi * passed)) / 2
        return self.eta


def still(module: torch.nn.Module) -> list[torch.Tensor]:
    """The velocity before the first step: zeros in the shapes of the parameters that move, in their order."""
    return [torch.zeros_like(w) for w in layout(module).parameters]


class Directions:
    """The directions of a module by number; the last one is kept for the step that follows its evaluation.

    `name` is the name of a random stream, and a format: the same name and number must give the same direction in every
    version. It is (seed, "direction", m), with m = 0 for the server.
    """

    def __init__(self, module: torch.nn.Module, *name: int | str) -> None:
        self._layout, self._name = layout(module), name
        self._last: tuple[int, Direction] | None = None

    def __call__(self, number: int) -> Direction:
        """Direction `number`, a function of the name and the number alone."""
        if self._last is None or self._last[0] != number:
            self._last = None  # the memory of the old direction must be free before the new one takes its own
            self._last = number, Direction(self._layout, seed_of(*self._name, number))
        return self._last[1]


def zo_step(velocity: list[torch.Tensor], u: Direction, Delta: float, steps: Steps, t: int) -> None:
    """w <- w - eta * Delta * u in round t, with momentum if `steps` has it."""
    if steps.momentum:
        momentum_step(velocity, u, Delta, eta=steps.at(t), momentum=steps.momentum)
    else:
        step(u, steps.at(t) * Delta)


@torch.no_grad()
def sgd_step(
    parameters: list[torch.Tensor],
    gradients: tuple[torch.Tensor, ...],
    velocity: list[torch.Tensor],
    steps: Steps,
    t: int,
) -> None:
    """w <- w - eta * gradient in round t, with momentum if `steps` has it."""
    if steps.momentum:
        torch._foreach_mul_(velocity, steps.momentum)
        torch._foreach_add_(velocity, gradients)
        gradients = tuple(velocity)
    torch._foreach_add_(parameters, gradients, alpha=-steps.at(t))
