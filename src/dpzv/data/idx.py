"""Reading idx files, the format of MNIST: a magic number, the sizes, then raw bytes; gzipped or not."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import DataError

__all__ = ["check_md5", "parse_idx", "read_bytes"]

_UNSIGNED_BYTE = 8


def read_bytes(path: Path, remedy: str) -> bytes:
    """The raw bytes of `path`, unpacked when it is gzipped; `remedy` ends the sentence if that fails."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} should be a whole gzip file, but unpacking it failed ({error}); {remedy}") from error
    except OSError as error:
        raise DataError(f"{path} should be readable, but reading it failed ({error.strerror}); {remedy}") from error


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


def check_md5(content: bytes, expected: str, name: str, remedy: str) -> None:
    """Refuse `content` whose md5 is not `expected` (against accidents, not against forgery)."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(f"{name} should have md5 {expected}, got {found}: it is another or a damaged file; {remedy}")
