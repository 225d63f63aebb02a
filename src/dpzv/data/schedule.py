"""Public choices among records: the batch schedule of a device, and which records are tested on.

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

__all__ = ["BatchSchedule", "holdout", "public_order", "public_split"]


def public_order(n: int, *parts: int | str) -> NDArray[np.int64]:
    """The permutation of 0..n-1 that the public stream called `parts` gives, int64 [n].

    It sorts raw bits instead of calling `Generator.permutation`, since two organisations must get the same order: numpy
    promises the same raw bits in all versions, but not the same results of its methods. The parts of a stream's name
    are a format for the same reason: with another word or order all parties would choose other records.
    """
    bits = numpy_generator(*parts).bit_generator.random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


def public_split(n: int, held: int, *parts: int | str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the training and of the `held` test records among n, in the public order of the stream `parts`.

    The split is not stratified: if it looked at labels, the place of a record would depend on all other records.
    """
    order = public_order(n, *parts)
    return order[held:], order[:held]


def holdout(n: int, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted numbers of the training and the test records among n; `share` of them are for test (``data.holdout``).

    Every party finds the same records without a message, and the choice depends on no label or feature. The stream's
    name, "holdout", and the rounding are a format.
    """
    held = round(share * n) if 0 < share < 1 else 0
    if not 0 < held < n:
        raise ConfigError(
            f"data.holdout must leave training and test records, got {share} of {n} records; 0.1 is a usual choice."
        )
    train, test = public_split(n, held, "holdout")
    return np.sort(train), np.sort(test)


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Device m's batches of B out of D records, as a function of its turn k = 0, 1, 2, ...

    Formal guarantee: a batch never holds a record twice, and after n turns every record took part at most
    ceil(n*B/D) times. Both hold for every seed.
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
        walk = np.concatenate([order, order[: self.B]])  # so that every batch is one contiguous piece
        walk.flags.writeable = False
        object.__setattr__(self, "_walk", walk)
        object.__setattr__(self, "order", walk[: self.D])

    def ids(self, position: int) -> NDArray[np.int64]:
        """Record ids of the batch at turn `position`, int64 [B], all different; a read-only view that costs nothing."""
        if position < 0:
            raise ConfigError(f"a schedule position must be at least 0, got {position}; count turns from 0.")
        start = position * self.B % self.D
        return self._walk[start : start + self.B]
