"""Counts how much of its cap every record has used, in integers. Charges are rounded up, so no sum passes the cap."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import PrivacyRefused
from dpzv.privacy.events import PlannedRelease, unit_mu

__all__ = ["CapCounters"]

# A counter is an integer in units of cap / 2^62: sums are exact, and every charge is rounded up.
_FULL = 1 << 62
# covers the rounding of the few float64 operations before a charge becomes an integer
_ROUND_UP = 2.0**-50


class CapCounters:
    """One counter per record id 0 .. D-1 for the sum of (C / (B sigma_dp))^2, kept at or below `cap`.

    An infinite `cap` means that nothing is counted. `room` is a charge, in the counters' units, that every record can
    still pay.
    """

    def __init__(self, *, D: int, cap: float) -> None:
        self._cap = cap
        self._used = np.zeros(D, dtype=np.int64)
        self.room = _FULL
        self._charges: dict[tuple[float, ...], int] = {}

    @property
    def largest(self) -> float:
        """The largest sum of any record, rounded up; 0 where nothing is counted."""
        most = _FULL - self.room
        return most / _FULL * self._cap * (1 + _ROUND_UP) if most else 0.0

    def charge_of(self, release: PlannedRelease) -> int:
        """What `release` costs a record in it, in the counters' units; 0 where nothing is counted.

        Refused when it costs more than the whole cap.
        """
        if math.isinf(self._cap):
            return 0
        key = release.B, release.C, release.sigma_dp, release.per_record
        if key not in self._charges:  # a run has only a few different ones
            share = unit_mu(release) ** 2 / self._cap * (1 + _ROUND_UP) if self._cap > 0 else math.inf
            if not share <= 1:
                raise PrivacyRefused(
                    f"one release with B={release.B} and sigma_dp={release.sigma_dp:g} would alone pass the cap of "
                    "every record in it; release what was planned."
                )
            self._charges[key] = math.ceil(share * _FULL)
        return self._charges[key]

    def can_pay(self, ids: NDArray[np.int64], charge: int) -> NDArray[np.bool_]:
        """Which of the records `ids` can pay `charge`."""
        able: NDArray[np.bool_] = self._used.take(ids) <= _FULL - charge
        return able

    def add(self, ids: NDArray[np.int64], charge: int) -> None:
        """Charge the records `ids` (all different), except those that cannot pay, since they contributed nothing."""
        if charge:
            used = self._used.take(ids)
            used += charge if charge <= self.room else np.where(used > _FULL - charge, 0, charge)
            self._used[ids] = used
            self.room = min(self.room, _FULL - int(np.maximum.reduce(used)))

    def add_all(self, batches: Sequence[NDArray[np.int64]], charge: int) -> None:
        """Charge all batches at once; refused, with nothing charged, unless every record can pay each time."""
        if charge and batches:
            drawn = np.bincount(np.concatenate(batches), minlength=len(self._used))
            # numbers of draws are compared, and not their costs, since the cost of many may not fit in 64 bits
            if charge * len(batches) > self.room and bool((drawn > (_FULL - self._used) // charge).any()):
                raise PrivacyRefused(
                    "every record must stay below its cap, got a block of rounds in which some would pass their cap; "
                    "plan more participations."
                )
            self._used += drawn * charge
            self.room = _FULL - int(self._used.max())

    def add_many(self, batches: Sequence[NDArray[np.int64]], charge: int) -> None:
        """Do at once what `add` would do for each of `batches` in turn.

        All batches cost the same, so a record that cannot pay once cannot pay later. The order is therefore of no
        matter: a record pays as often as it was drawn, or as often as it can.
        """
        if charge and batches:
            drawn = np.bincount(np.concatenate(batches), minlength=len(self._used))
            self._used += np.minimum(drawn, (_FULL - self._used) // charge) * charge
            self.room = _FULL - int(self._used.max())
