"""Files on disk: where data lie, reading them whole, checksums, and writing all or nothing."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from dpzv.errors import DataError, DiskError

__all__ = ["check_md5", "data_folder", "disk", "read_bytes", "write", "write_with"]

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


@contextlib.contextmanager
def disk(target: Path) -> Iterator[None]:
    """Turn what the disk refuses while `target` is written into a `DiskError`."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"{target} should be written, but the disk refused ({error.strerror}); free some space, or "
            "choose another folder by data.path or DPZV_DATA."
        ) from error


def write(target: Path, content: bytes) -> None:
    """Put `content` into `target`, all of it or nothing."""

    def put(out: BinaryIO) -> None:
        out.write(content)

    write_with(target, put)


def write_with(target: Path, put: Callable[[BinaryIO], None]) -> None:
    """Let `put` write to a temporary name beside `target`, then rename: a reader sees all of it or nothing."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with disk(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as out:
                put(out)
                out.flush()
                os.fsync(out.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
