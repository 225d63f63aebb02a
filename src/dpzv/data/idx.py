"""Reading idx files, the format of MNIST: a magic number, the sizes, then raw bytes."""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import DataError

__all__ = ["parse_idx"]

_UNSIGNED_BYTE = 8


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
