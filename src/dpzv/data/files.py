"""Files of data sets: where they lie, reading them whole, checksums, and what is computed from them once."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.durable import replacing
from dpzv.errors import DataError

__all__ = ["REMEDY", "cached", "check_md5", "data_folder", "open_npz", "read_bytes"]

REMEDY = "free space, or choose another folder by data.path or DPZV_DATA"
"""What to do when the disk refuses a file of data."""

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ"


def data_folder(path: str | Path | None = None) -> Path:
    """The folder for fetched data: `path` (``data.path``), else $DPZV_DATA, else dpzv in the user's cache."""
    chosen = path or os.environ.get("DPZV_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dpzv"


def read_bytes(path: Path, remedy: str) -> bytes:
    """The raw bytes of `path`, unpacked when it is gzip or xz; `remedy` ends the sentence if that fails."""
    kind = "gzip"
    try:
        content = path.read_bytes()
        if content.startswith(_XZ):
            kind = "xz"
            return lzma.decompress(content)
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} should be a whole {kind} file, but unpacking it failed ({error}); {remedy}") from error
    except OSError as error:
        raise DataError(f"{path} should be readable, but reading it failed ({error.strerror}); {remedy}") from error


def check_md5(content: bytes, expected: str, name: str, remedy: str) -> None:
    """Refuse `content` whose md5 is not `expected` (against accidents, not against forgery)."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(f"{name} should have md5 {expected}, got {found}: it is another or a damaged file; {remedy}")


def cached(name: str, key: str, make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """What `make` gives, kept in ``cache/NAME-KEY.npz`` of the data folder.

    `key`, in hex, must name everything that `make` depends on. A damaged file is made again.
    """
    target = data_folder() / "cache" / f"{name}-{key[:32]}.npz"
    try:
        return open_npz(target)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        arrays = make()
    with replacing(target, shared=True, remedy=REMEDY) as new, new.open("wb") as out:
        np.savez(out, allow_pickle=False, **arrays)
    return arrays


def open_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file, their checksums verified; never unpickles."""
    with path.open("rb") as file:  # ours to close, also where numpy refuses it
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        return {name: archive[name] for name in archive.files}
