"""What was computed from files once and need not be again: named arrays in one npz file, found by a key."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpzv.data.files import data_folder, write_with

__all__ = ["cached", "open_npz"]


def cached(name: str, key: str, make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """What `make` gives, kept in ``cache/NAME-KEY.npz`` of the data folder.

    `key`, in hex, must name everything that `make` depends on. A damaged file is made again.
    """
    target = data_folder() / "cache" / f"{name}-{key[:32]}.npz"
    try:
        return open_npz(target)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        arrays = make()

    def put(out: BinaryIO) -> None:
        np.savez(out, allow_pickle=False, **arrays)

    write_with(target, put)
    return arrays


def open_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file, their checksums verified; never unpickles."""
    with path.open("rb") as file:  # ours to close, also where numpy refuses it
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        return {name: archive[name] for name in archive.files}
