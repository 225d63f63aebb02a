"""`cifar10`: 32x32 colour photographs cut into 2x2 patches of 16x16, one device each.

A record of its binary files is 3,073 bytes: the class, then 1,024 bytes each of red, green and blue, row by row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import CIFAR10
from dpzv.data.dataset import Dataset, from_arrays
from dpzv.data.files import check_md5, data_folder, read_bytes
from dpzv.errors import DataError

__all__ = ["CHANNELS", "FILES", "SIDE", "find", "load", "missing", "patches"]

FILES = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
"""The published files and their md5; the last holds the test records."""

CHANNELS, SIDE = 3, 32
_HALF = SIDE // 2
_REMEDY = "run `dpzv data fetch cifar10` to get it again."


def find(folder: Path, name: str) -> Path | None:
    """Where file `name` lies in `folder`, its subfolder ``cifar10`` or the official one; None if nowhere."""
    for place in (folder / CIFAR10.name, folder / "cifar-10-batches-bin", folder):
        if os.path.isfile(place / name):  # False, not an error, where the folder is closed to us
            return place / name
    return None


def missing(folder: Path) -> list[str]:
    """Names of the files of CIFAR-10 that `folder` lacks."""
    return [name for name in FILES if find(folder, name) is None]


def load(path: str | Path | None = None) -> Dataset:
    """CIFAR-10 from `data_folder(path)`: four devices, uint8 [50000, 768] and [10000, 768] as `patches` cuts."""
    folder = data_folder(path)
    absent = missing(folder)
    if absent:
        raise DataError(
            f"data set 'cifar10' should lie in {folder}, which lacks {', '.join(absent)}; "
            "run `dpzv data fetch cifar10`, or set data.path to a folder that has the files."
        )
    records = [_read(folder, name) for name in FILES]
    train, test = np.concatenate(records[:-1]), records[-1]
    return from_arrays(
        patches(_images(train)),
        train[:, 0],
        patches(_images(test)),
        test[:, 0],
        task=CIFAR10.task,
        n_classes=CIFAR10.n_classes,
        devices=CIFAR10.devices,
        name=CIFAR10.name,
        source=CIFAR10.source,
    )


def patches(images: NDArray[Any]) -> list[NDArray[Any]]:
    """The four corners of `images` [n, 3, 32, 32], each [n, 768]: channel by channel, row by row.

    In the order of the devices: upper left, upper right, lower left, lower right.
    """
    halves = (slice(None, _HALF), slice(_HALF, None))
    corners = [images[:, :, rows, columns] for rows in halves for columns in halves]
    return [np.ascontiguousarray(corner).reshape(-1, CHANNELS * _HALF * _HALF) for corner in corners]


def _images(records: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return records[:, 1:].reshape(len(records), CHANNELS, SIDE, SIDE)


def _read(folder: Path, name: str) -> NDArray[np.uint8]:
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder / name} vanished while it was read; {_REMEDY}")
    content = read_bytes(path, _REMEDY)
    check_md5(content, FILES[name], str(path), _REMEDY)
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + CHANNELS * SIDE * SIDE)
