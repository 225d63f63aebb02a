"""Step sizes over the rounds. Whatever is done with a released value is post-processing and costs nothing."""

from __future__ import annotations

import math

from dpzv.terms import Schedule

__all__ = ["step_factor"]


def step_factor(schedule: Schedule, t: int, T: int) -> float:
    """What eta is multiplied with in round t of T: 1, or falling to 0. Rounds count from 1; 0 is before them all."""
    t = max(t, 1)
    if schedule == "linear":
        return 1 - (t - 1) / T
    if schedule == "cosine":
        return (1 + math.cos(math.pi * (t - 1) / T)) / 2
    return 1.0
