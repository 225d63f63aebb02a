"""A device's own records and what they mean to its weights: how columns are encoded, and which values they hold.

Weights fit one encoding and one set of records. So a device's folder keeps both, and the server keeps a keyed digest of
each from the first meeting on. The key is that of the parties' ids, which nobody else has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.columns import Column

__all__ = ["Digests", "FeatureRecords", "change_of"]


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
