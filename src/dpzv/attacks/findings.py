"""From an attack's guesses to a row: score, floor, ceiling and interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.attacks.limits import ceiling
from dpzv.attacks.scores import Area, area, difference

__all__ = ["CONFIDENCE_OF_ROWS", "AttackRow", "RunFacts", "Tried", "rows_of"]

CONFIDENCE_OF_ROWS = 0.99
"""The confidence of all intervals of one run together."""


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """One try of an attack: its guesses [n, labels] about labels `y` [n], or [n, c] about answers `y` [n, c].

    `floor` is what the same attack guesses from its own features and known labels only. `unseen` is what it guesses of
    records that the run was not trained on, with labels `y_unseen`; `None` if it can say nothing of them.
    """

    guess: NDArray[np.float64]
    floor: NDArray[np.float64]
    y: NDArray[np.int64]
    unseen: NDArray[np.float64] | None = None
    y_unseen: NDArray[np.int64] | None = None


class RunFacts(msgspec.Struct, frozen=True):
    """What is known of the run that was attacked; `epsilon` is the true one, `None` where nothing is promised."""

    method: str
    epsilon: float | None
    asked_epsilon: float | None
    noise: str
    seed: int
    data: str


class AttackRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one attack reached on one run, as the area under the curve (1/2: blind guessing).

    `floor` is reached without the run, `unseen` on records that were not part of it, and `ceiling` is the most that the
    claim allows. `interval` is that of `score`. `leaks` says that the score is above floor and `unseen` beyond its
    interval, `broken` that it is above the ceiling. No claim of any run is about what is not `covered`, such as what
    the trusted server sees: there neither is said.
    """

    attack: str
    target: str
    method: str
    epsilon: float | None
    score: float
    floor: float
    ceiling: float
    interval: tuple[float, float]
    unseen: float | None
    leaks: bool
    broken: bool
    covered: bool
    run: RunFacts

    @property
    def verdict(self) -> str:
        """The row in a word."""
        if not self.covered:
            return "not covered"
        return "BROKEN" if self.broken else "leaks" if self.leaks else "-"


def rows_of(
    found: Sequence[tuple[str, str, Sequence[Tried]]], run: RunFacts, mu: Sequence[float | None]
) -> list[AttackRow]:
    """The rows of attacks, each with its name, its target, its tries and its mu; `None` is what no claim covers."""
    from scipy.special import ndtri

    width = -float(ndtri((1 - CONFIDENCE_OF_ROWS) / 2 / max(1, len(found))))
    return [_row(*one, run, each, width) for one, each in zip(found, mu, strict=True)]


def _row(attack: str, target: str, tries: Sequence[Tried], run: RunFacts, of: float | None, width: float) -> AttackRow:
    mu = math.inf if of is None else of
    scores = [area(one.guess, one.y) for one in tries]
    floors = [area(one.floor, one.y) for one in tries]
    score, error = _together([(one.value, one.error) for one in scores])
    above, of_floor = _together([difference(a, b, paired=True) for a, b in zip(scores, floors, strict=True)])
    unseen, leaks = None, above > width * of_floor
    limits = [ceiling(one.floor, one.y, mu) for one in tries]
    others: list[Area] = []
    for one in tries:
        if one.unseen is not None and one.y_unseen is not None:
            others.append(area(one.unseen, one.y_unseen))
            limits.append(ceiling(one.unseen, one.y_unseen, mu))
    if others:
        unseen, _ = _together([(one.value, one.error) for one in others])
        gap, of_gap = _together([difference(a, b, paired=False) for a, b in zip(scores, others, strict=True)])
        leaks = leaks and gap > width * of_gap
    most = max(limits)
    return AttackRow(
        attack=attack,
        target=target,
        method=run.method,
        epsilon=run.epsilon,
        score=score,
        floor=_together([(one.value, one.error) for one in floors])[0],
        ceiling=most,
        interval=(max(0.0, score - width * error), min(1.0, score + width * error)),
        unseen=unseen,
        leaks=leaks and of is not None,
        broken=score - width * error > most,
        covered=of is not None,
        run=run,
    )


def _together(tries: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of several tries on the same records, and its error: that of one of them, and that of the draws."""
    values = np.array([value for value, _ in tries])
    drawn = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), math.hypot(float(np.mean([error for _, error in tries])), drawn)
