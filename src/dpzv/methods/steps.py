"""Step sizes, directions and steps. Whatever is done with a released value is post-processing and costs no budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.rng import seed_of
from dpzv.terms import Schedule
from dpzv.zo.directions import Direction, layout
from dpzv.zo.perturb import momentum_step, step

__all__ = ["Directions", "Steps", "sgd_step", "still", "zo_step"]


@dataclass(frozen=True, slots=True)
class Steps:
    """How far weights move: a step size `eta`, its `schedule` over T rounds, momentum, and K, the directions a step."""

    eta: float
    momentum: float
    schedule: Schedule
    T: int
    K: int = 1

    def at(self, t: int) -> float:
        """The step size of round t: `eta`, or less if the schedule falls to 0. Rounds count from 1; 0 is the start."""
        passed = (max(t, 1) - 1) / self.T
        if self.schedule == "linear":
            return self.eta * (1 - passed)
        if self.schedule == "cosine":
            return self.eta * (1 + math.cos(math.pi * passed)) / 2
        return self.eta


def still(module: torch.nn.Module) -> list[torch.Tensor]:
    """The velocity before the first step: zeros in the shapes of the trainable parameters, in their order."""
    return [torch.zeros_like(w) for w in layout(module).parameters]


KEPT = 1 << 20
"""The most numbers of several directions that are kept for the step that follows their evaluation."""


class Directions:
    """The directions of a module by number; the last `K` of them are kept for the step that follows their evaluation.

    Of a larger module only the last one is kept (`keeps` is 1), so that K directions need no more memory than one.
    `name` is the name of a random stream, and a format: the same name and number must give the same direction in every
    version. It is (seed, "direction", m), with m = 0 for the server.
    """

    def __init__(self, module: torch.nn.Module, *name: int | str, K: int = 1) -> None:
        self.layout, self._name = layout(module), name
        self.keeps = K if K * self.layout.d <= KEPT else 1
        self._kept: dict[int, Direction] = {}

    def __call__(self, number: int) -> Direction:
        """Direction `number`, a function of the name and the number alone."""
        if number not in self._kept:
            if len(self._kept) >= self.keeps:
                self._kept.clear()  # the memory of the old ones must be free before the new one takes its own
            self._kept[number] = Direction(self.layout, seed_of(*self._name, number))
        return self._kept[number]


def zo_step(
    velocity: list[torch.Tensor], u: Directions, first: int, Delta: NDArray[np.float64], steps: Steps, t: int
) -> None:
    """w <- w - eta * (1/K) * sum_j Delta_j * u_j in round t, with momentum if `steps` has it.

    The K directions are those numbered from `first` on, K is the length of `Delta`, and they are made one after the
    other. With momentum the velocity falls before the first of them, and the weights move after the last.
    """
    eta, momentum, last = steps.at(t), steps.momentum, len(Delta) - 1
    for j, each in enumerate((Delta / len(Delta)).tolist()):
        if momentum:
            falls, moves = momentum if j == 0 else 1.0, eta if j == last else 0.0
            momentum_step(velocity, u(first + j), each, eta=moves, momentum=falls)
        else:
            step(u(first + j), eta * each)


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
