"""Step sizes over the rounds. Whatever is done with a released value is post-processing and costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpzv.terms import Schedule

__all__ = ["Steps"]


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
