"""The public batch schedule: which records a device sends at its k-th turn.

Batches are public, so the account counts participations. One permutation per device, walked cyclically in
steps of B, spreads them as evenly as possible: after n turns no record took part more than ceil(n*B/D) times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import ConfigError
from dpzv.rng import numpy_generator
from dpzv.validate import whole

__all__ = ["BatchSchedule", "public_order"]


def public_order(n: int, *parts: int | str) -> NDArray[np.int64]:
    """The permutation of 0..n-1 that the public stream called `parts` gives, int64 [n].

    Sorted raw bits rather than `Generator.permutation`: two organisations must agree on it, and numpy
    promises the raw bits for all versions but not what its methods make of them.
    """
    bits = numpy_generator(*parts).bit_generator.random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Device m's batches of B out of D records, as a function of its turn k = 0, 1, 2, ...

    Formal guarantee: a batch never holds a record twice, and after n turns every record took part at most
    `participations(n)` times. Both hold for every seed.
    """

    seed: int
    m: int
    B: int
    D: int
    order: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    _walk: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole("train.B", self.B, 1)
        whole("the number of records D", self.D, 1)
        if self.B > self.D:
            raise ConfigError(
                f"train.B must be at most the number of training records, {self.D}, got {self.B}; lower train.B."
            )
        # the name of this random stream is a format: the server and device m must draw the same permutation
        order = public_order(self.D, self.seed, "schedule", self.m)
        walk = np.concatenate([order, order[: self.B]])  # no batch has to be put together from both ends
        walk.flags.writeable = False
        object.__setattr__(self, "_walk", walk)
        object.__setattr__(self, "order", walk[: self.D])

    def ids(self, position: int) -> NDArray[np.int64]:
        """Record ids of the batch at turn `position`, int64 [B], all different; a read-only view that costs nothing."""
        if position < 0:
            raise ConfigError(f"a schedule position must be at least 0, got {position}; count turns from 0.")
        start = position * self.B % self.D
        return self._walk[start : start + self.B]

    def participations(self, turns: int) -> int:
        """The most often that any record took part in the first `turns` batches: ceil(turns*B/D)."""
        return -(-whole("the number of turns", turns, 0) * self.B // self.D)
