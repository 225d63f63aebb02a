"""Many short texts, such as the ids of a party's records, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from xxhash import xxh3_64_intdigest

__all__ = ["Texts"]


class Texts(Sequence[str]):
    """A sequence of texts that only grows: their bytes in UTF-8 one after the other, and where each of them ends.

    A text takes 8 bytes more than its characters; in a list of Python's own it takes about 60 bytes more.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._bytes, self._ends = bytearray(), array("q", [0])
        self.extend(texts)

    def extend(self, texts: Iterable[str]) -> None:
        """Add texts at the end."""
        for text in texts:
            self._bytes += text.encode()
            self._ends.append(len(self._bytes))

    def may_repeat(self) -> bool:
        """Whether two texts have the same hash; different texts do by chance in one of 2^64 pairs."""
        with memoryview(self._bytes) as whole:
            hashes = (xxh3_64_intdigest(whole[start:end]) for start, end in pairwise(self._ends))
            ordered = np.sort(np.fromiter(hashes, np.uint64, len(self)))
        return bool((ordered[1:] == ordered[:-1]).any())

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        i = range(len(self))[place]  # as in a list: negative places count from the end, a missing one raises
        return self._bytes[self._ends[i] : self._ends[i + 1]].decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # what can grow must not be a key
