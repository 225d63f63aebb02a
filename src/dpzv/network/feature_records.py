"""A device's own records: how their columns are encoded, and which values they hold. Its weights depend on both.

Weights fit one encoding and one set of records. So a device's folder keeps both, and the server keeps a keyed digest of
each from the first meeting on. The digests are keyed by the key of the parties' ids, which nobody else has. A device
that hides its ids from the server uses a key of its own instead, which the server does not have.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.columns import Column
from dpzv.data.psi import SecretNumber
from dpzv.errors import PeerError
from dpzv.network.logs import LoggedProgress

__all__ = ["Digests", "FeatureRecords", "OwnIds", "change_of"]

LOG = logging.getLogger("dpzv.device")
AT_ONCE = 16_384
"""The ids that are sent or hidden at a time; to hide them takes one core about two seconds."""


class Digests(msgspec.Struct, frozen=True, array_like=True):
    """Keyed digests of a device's encoding and of its records; the order is a format of the wire."""

    encoding: Annotated[str, msgspec.Meta(max_length=100)] = ""
    records: Annotated[str, msgspec.Meta(max_length=100)] = ""


class FeatureRecords(msgspec.Struct, frozen=True):
    """A device's own records: hashed ids uint8 [n, 16], features [n, d_m], how they were encoded, and the ids' key."""

    hashes: NDArray[np.uint8]
    x: NDArray[Any]
    columns: tuple[Column, ...] = ()
    key: bytes = b""

    def digests(self) -> Digests:
        """What the server is told of this device's encoding and records."""
        encoding = hashlib.blake2b(msgspec.json.encode(meant(self.columns)), key=self.key, digest_size=16)
        records = hashlib.blake2b(f"{self.x.dtype} {self.x.shape}".encode(), key=self.key, digest_size=16)
        for array in (self.hashes, self.x):
            records.update(np.ascontiguousarray(array).data)
        return Digests(encoding.hexdigest(), records.hexdigest())


class OwnIds:
    """A device's ids as its server gets to see them: keyed hashes uint8 [n, 16], or hidden by `key`, if there is one.

    Hidden ids are listed in a secret order that follows from the key: in the order of the file, the places of ids that
    the server knows would tell something about the ids between them. In every exchange the ids are hidden by a new
    number, so that two lists have nothing in common.
    """

    def __init__(self, hashes: NDArray[np.uint8], key: bytes = b"") -> None:
        """With a key, raises `ConfigError` if the package that computes points is not installed."""
        self.count, self.key, self._hashes = len(hashes), key, hashes
        self._number = SecretNumber() if key else None  # hides the ids; another one in every exchange
        self._asked = True  # whether the server has named its own ids since it was sent a list

    @cached_property
    def digest(self) -> str:
        """What names these ids, so that a changed file is noticed; without the key nobody can test an id by it."""
        data = np.ascontiguousarray(self._hashes).reshape(-1).data
        return (hashlib.blake2b(data, key=self.key, digest_size=32) if self.key else hashlib.sha256(data)).hexdigest()

    def sent(self) -> Iterator[NDArray[np.uint8]]:
        """The list that the server is sent, uint8 [n, 16] in all, part by part."""
        starts = range(0, self.count, AT_ONCE)
        if not self.key:
            LOG.info(
                "the server is sent keyed hashes of all %d ids of this device, by which it can test any id; with "
                'network.alignment = "psi" it would learn only which of its own ids are among them',
                self.count,
            )
            yield from (self._hashes[start : start + AT_ONCE] for start in starts)
            return
        self._number, self._asked = SecretNumber(), False
        progress = LoggedProgress(LOG, "this device's ids are hidden", self.count)
        for start in starts:
            rows = self._order[start : start + AT_ONCE]
            yield self._number.hidden(self._hashes[rows])[:, : self._hashes.shape[1]]
            progress.tell(start + len(rows))

    def begin(self, ids: int) -> None:
        """Take note that the server sends `ids` hidden ids of its own, which it may do once after each list it got."""
        if self._asked:
            raise PeerError("the server may name its ids once after it was sent hidden ones; the link is closed.")
        self._asked = True
        LOG.info("the server names %d ids and learns which of them are among the %d of this device", ids, self.count)

    def answer(self, points: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The server's hidden ids, uint8 [n, 32], hidden by this device as well."""
        assert self._number is not None
        return self._number.times(points)

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the device's file that stand at these places of the list."""
        return self._order[numbers] if self.key else numbers

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """The rows of the file in the order of the list: by a hash under the key, since a restart needs it again."""
        keyed = partial(hashlib.blake2b, key=self.key, digest_size=8, person=b"dpzv order")
        hashed = b"".join(keyed(row.tobytes()).digest() for row in self._hashes)
        return np.argsort(np.frombuffer(hashed, np.uint64), kind="stable")


def meant(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """What an encoding depends on: everything but the sentence that names a column's source, and its owner's number."""
    left_out = ("source", "device")
    return [{k: v for k, v in msgspec.to_builtins(column).items() if k not in left_out} for column in columns]


def change_of(before: Sequence[Column], now: Sequence[Column]) -> str:
    """What differs between two encodings, in words for their owner; empty if nothing does."""
    names = [[column.name for column in columns] for columns in (before, now)]
    if names[0] != names[1]:
        return f"the columns were {', '.join(names[0]) or 'none'}, and are {', '.join(names[1]) or 'none'}"
    for old, new in zip(meant(before), meant(now), strict=True):
        for field, value in old.items():
            if value != new[field]:
                return f"'{field}' of column '{old['name']}' was {value!r}, and is {new[field]!r}"
    return ""
