"""Ids as points of an elliptic curve, for private set intersection.

A party multiplies the point that belongs to an id by a secret number of its own. Who lacks the number can neither find
the id in the product nor make the product of an id it knows. Two parties that multiply one after the other get the same
point in either order, and each can take its own number out again; this is all that the exchange in
`network/hidden_ids.py` needs.

The curve is P-256, and the package `openmined-psi` computes on it. A point is its first coordinate, 32 bytes: it stands
for two opposite points, whose products have the same first coordinate again.
"""

from __future__ import annotations

import importlib
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import ConfigError, PeerError

__all__ = ["POINT_BYTES", "SecretNumber"]

POINT_BYTES = 32
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""How many points the curve has, which is a prime: a number has an inverse modulo it."""
EVEN = b"\x02"
"""The byte before the first coordinate of a point whose second coordinate is even."""
FEWEST = 256
"""The fewest points that are worth a thread of their own; they take some 30 ms."""


class SecretNumber:
    """A number from 1 to the order of the curve, drawn by the operating system unless it is given."""

    def __init__(self, number: int = 0) -> None:
        """Raises `ConfigError` if the package is not installed."""
        self._library = _library()
        self._number = number or 1 + secrets.randbelow(P256_ORDER - 1)
        self._key = self._number.to_bytes(POINT_BYTES, "big")
        self._own = threading.local()  # an object of the library is for one thread, and making one takes milliseconds

    def inverse(self) -> Self:
        """The number that takes this one out of a product."""
        return type(self)(pow(self._number, -1, P256_ORDER))

    def hidden(self, hashes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The points of keyed hashes of ids, uint8 [n, 16], times this number: uint8 [n, 32]."""
        return _on_all_cores(self._hidden, [row.tobytes() for row in hashes])

    def times(self, points: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Points, uint8 [n, 32], times this number; raises `PeerError` for bytes that are no point."""
        return _on_all_cores(self._times, [EVEN + row.tobytes() for row in points])

    def _hidden(self, elements: Sequence[bytes]) -> Sequence[bytes]:
        if not hasattr(self._own, "client"):
            self._own.client = self._library.client.CreateFromKey(self._key, True)
        found: Sequence[bytes] = self._own.client.CreateRequest(elements).encrypted_elements
        return found

    def _times(self, elements: Sequence[bytes]) -> Sequence[bytes]:
        if not hasattr(self._own, "server"):
            self._own.server = self._library.server.CreateFromKey(self._key, True)
        # with `reveal_intersection` the answers come in the order of the request
        request = self._library.Request(reveal_intersection=True, encrypted_elements=elements)
        try:
            found: Sequence[bytes] = self._own.server.ProcessRequest(request).encrypted_elements
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise PeerError(f"a hidden id must be a point of the curve ({reason}); the link is closed.") from None
        return found


def _on_all_cores(work: Callable[[Sequence[bytes]], Sequence[bytes]], rows: Sequence[bytes]) -> NDArray[np.uint8]:
    """What `work` makes of all rows, without the first byte of each; the library lets other threads run meanwhile."""
    size = max(FEWEST, -(-len(rows) // _cores()))
    parts = _pool().map(work, [rows[start : start + size] for start in range(0, len(rows), size)])
    joined = b"".join(element for part in parts for element in part)
    return np.frombuffer(joined, np.uint8).reshape(-1, POINT_BYTES + 1)[:, 1:]


def _cores() -> int:
    return os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), "dpzv-psi")


def _library() -> Any:
    try:
        return importlib.import_module("private_set_intersection.python")
    except ImportError as error:
        raise ConfigError(
            f'network.alignment = "psi" needs the Python package openmined-psi, which cannot be imported ({error}); '
            "run `pip install 'dpzv[psi]'`, or agree with all parties on \"hashes\"."
        ) from None
