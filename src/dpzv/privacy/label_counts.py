"""How many records each class has, counted once and with noise. Everything about this mechanism stands here.

The server starts its head at the base rate that the counts give, so that training need not spend budget on learning it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dpzv.errors import PrivacyRefused
from dpzv.privacy.events import Event, Gaussian, Pair
from dpzv.sensitivity import histogram_factor

__all__ = ["LabelCounts", "frequencies"]


class LabelCounts(Event, Struct, frozen=True, kw_only=True, tag=True):
    """The numbers of records in all classes, each plus Gaussian noise of `sigma` records, rounded to a fine grid.

    `counts` are the noisy numbers; in a plan they are empty. The ledger keeps them in the row that charges them. So
    they are drawn again only if nothing was charged, and whoever opens the ledger later finds those that were charged.
    """

    sigma: float
    counts: tuple[float, ...] = ()

    def pairs(self) -> tuple[Pair, ...]:
        """One Gaussian: the counts are on the grid already, so rounding after the noise is post-processing."""
        square = 1 / self.sigma**2 if self.sigma > 0 else math.inf
        return (Gaussian(square=square, replaced=histogram_factor("replace-one")),)

    def is_new(self, charged: Sequence[Event], planned: Sequence[Event]) -> bool:
        """Labels are counted once, as planned; other counts than those that were charged are refused."""
        replace(self, counts=()).require_planned(planned)
        before = [event for event in charged if isinstance(event, LabelCounts)]
        if any(event != self for event in before):
            raise PrivacyRefused(
                "the labels of this run were counted before, got other counts now; noise that is drawn twice could be "
                "averaged: use the counts in the ledger."
            )
        return not before


def frequencies(counts: Sequence[float], D: int) -> list[float]:
    """The share of each class among `D` records, from noisy counts; each lies between 1/D and 1 - 1/D.

    All counts are moved by the same number, so that they add up to the public D: this halves the error of two classes.
    """
    mean = math.fsum(counts) / len(counts)
    return [min(max(1 / len(counts) + (count - mean) / D, 1 / D), 1 - 1 / D) for count in counts]
