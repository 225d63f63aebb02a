"""`mnist`: 28x28 digits cut into seven strips of four rows, one device each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import MNIST
from dpzv.data.dataset import Dataset, from_arrays
from dpzv.data.files import check_md5, data_folder, read_bytes
from dpzv.data.idx import parse_idx
from dpzv.errors import DataError

__all__ = ["FILES", "IdxFile", "find", "load", "missing"]


@dataclass(frozen=True, slots=True)
class IdxFile:
    """One of the four files of MNIST: its raw name, how many dimensions it has, the md5 of the raw file."""

    name: str
    dimensions: int
    md5: str


FILES = (
    IdxFile("train-images-idx3-ubyte", 3, "6bbc9ace898e44ae57da46a324031adb"),
    IdxFile("train-labels-idx1-ubyte", 1, "a25bea736e30d166cdddb491f175f624"),
    IdxFile("t10k-images-idx3-ubyte", 3, "2646ac647ad5339dbf082846283269ea"),
    IdxFile("t10k-labels-idx1-ubyte", 1, "27ae3e4e09519cfbb04c329615203637"),
)

_REMEDY = "run `dpzv data fetch mnist` to get it again."


def find(folder: Path, file: IdxFile) -> Path | None:
    """Where `file` lies in `folder` or its subfolder ``mnist``, gzipped or not; None if it is not there."""
    names = (file.name, file.name.replace("-idx", ".idx"))  # both spellings are in circulation
    for place in (folder / MNIST.name, folder):
        for name in names:
            for candidate in (place / name, place / f"{name}.gz"):
                if os.path.isfile(candidate):  # False, not an error, where the folder is closed to us
                    return candidate
    return None


def missing(folder: Path) -> list[str]:
    """Names of the files of MNIST that `folder` lacks."""
    return [file.name for file in FILES if find(folder, file) is None]


def load(path: str | Path | None = None) -> Dataset:
    """MNIST from `data_folder(path)`: seven devices, uint8 [60000, 112] and [10000, 112], row after row."""
    folder = data_folder(path)
    absent = missing(folder)
    if absent:
        raise DataError(
            f"data set 'mnist' should lie in {folder}, which lacks {', '.join(absent)}; "
            "run `dpzv data fetch mnist`, or set data.path to a folder that has the files."
        )
    train_images, train_labels, test_images, test_labels = (_read(folder, file) for file in FILES)
    return from_arrays(
        _strips(train_images),
        train_labels,
        _strips(test_images),
        test_labels,
        task=MNIST.task,
        n_classes=MNIST.n_classes,
        devices=MNIST.devices,
        name=MNIST.name,
        source=MNIST.source,
    )


def _read(folder: Path, file: IdxFile) -> NDArray[np.uint8]:
    path = find(folder, file)
    if path is None:
        raise DataError(f"{folder / file.name} vanished while it was read; {_REMEDY}")
    content = read_bytes(path, _REMEDY)
    array = parse_idx(content, file.dimensions, str(path), _REMEDY)
    check_md5(content, file.md5, str(path), _REMEDY)
    return array


def _strips(images: NDArray[np.uint8]) -> list[NDArray[Any]]:
    strips = images.reshape(len(images), len(MNIST.devices), -1)
    return [np.ascontiguousarray(strips[:, m]) for m in range(len(MNIST.devices))]
