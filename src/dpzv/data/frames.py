"""Raw frames per device, before the recipe's public encoding; and their public split into training and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import Card
from dpzv.data.columns import Column, encode, of_device
from dpzv.data.dataset import Dataset, Records, fingerprint_of
from dpzv.data.schedule import public_split
from dpzv.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RawFrames", "encoded", "train_and_test"]


@dataclass(frozen=True, slots=True, eq=False)
class RawFrames:
    """The same records at every device of `card`: one raw frame for each device, and the labels `y`, int64 [records].

    digest: bytes that stand for the raw values. They enter the fingerprint in place of the encoded features,
    so that two runs over the same records are recognised even if their encodings differ.
    """

    card: Card
    frames: tuple[pd.DataFrame, ...]
    y: NDArray[np.int64]
    digest: bytes


def train_and_test(name: str, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted numbers of the training and the test records (a fifth, rounded down) of the data set `name`.

    The stream's name is a format: it fixes which records are tested on.
    """
    train, test = public_split(n, n // 5, "dpzv", "test-split", name)
    return np.sort(train), np.sort(test)


def encoded(raw: RawFrames, columns: Sequence[Column]) -> Dataset:
    """Split `raw` publicly and encode every device's frame by its `columns`."""
    card = raw.card
    _check_devices(raw, columns)
    arrays = [encode(frame, of_device(columns, m)) for m, frame in enumerate(raw.frames, 1)]
    train, test = train_and_test(card.name, len(raw.y))
    return card.dataset(
        Records([x[train] for x in arrays], raw.y[train]),
        Records([x[test] for x in arrays], raw.y[test]),
        fingerprint_of([train, raw.y[train], raw.digest]),
    )


def _check_devices(raw: RawFrames, columns: Sequence[Column]) -> None:
    name, devices = raw.card.name, raw.card.devices
    M = len(devices)
    if not columns:
        raise ConfigError(
            f"data set '{name}' needs [[data.columns]] with public ranges and categories, got none; "
            f"start from the recipe '{name}', which lists them."
        )
    for column in columns:
        if column.device > M:
            raise ConfigError(
                f"data column '{column.name}' is given to device {column.device}, but '{name}' has {M} "
                f"devices ({', '.join(devices)}); choose 1 to {M}."
            )
    for m, frame in enumerate(raw.frames, 1):
        if not of_device(columns, m):
            raise ConfigError(
                f"device {m} ({devices[m - 1]}) has no column in [[data.columns]]; "
                f"give it at least one of: {', '.join(map(str, frame.columns))}."
            )
