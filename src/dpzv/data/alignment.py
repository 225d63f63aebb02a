"""Which records the parties share: keyed hashes of ids, compared at the server.

Every party hashes its ids under one key that all parties have and nobody else. Devices send the hashes to the server
only, over their own authenticated and encrypted link; the server answers each device with row numbers.

What each party learns, beyond the outcome that the parties want:

    the server   which hashed ids each device has, shared or not. It holds the key too, so it can hash any id it
                 knows or guesses and see whether a device has it. It is trusted with that.
    a device     which of its own ids all parties share, and in what order: row numbers into its own table. A device
                 that sends the hash of an id it only guesses learns whether all the others have it.
    others       nothing, without the key. With the key, hashes are as good as ids: they are no anonymisation.

With private set intersection (`network/hidden_ids.py`) devices do not send these hashes, and the server learns which of
its own ids each device has, and nothing about other ids. Membership is not covered by the privacy claim of training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import ConfigError, DataError

__all__ = ["ANY", "HASH_BYTES", "KEY_BYTES", "Alignment", "Fewest", "aligned", "keyed", "name_of_key"]

HASH_BYTES = 16
KEY_BYTES = 32
"""The fewest bytes of a key: nobody guesses 256 bits. BLAKE2b takes at most 64."""
PARTS = 16
"""Ranges of hashes that are joined one after the other; a divisor of 256."""


class Fewest(NamedTuple):
    """How many records parties must share at least; `why` is the setting that needs so many, `remedy` what to do."""

    records: int = 1
    why: str = ""
    remedy: str = ""


ANY = Fewest()


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """The n records that all parties share, in an order that depends on ids and key alone.

    rows: row numbers into each party's own table, int64 [n], the server's first; entry i of each is the same id.
    sizes: rows of each party, the server first. with_server: how many of them the server has too.
    """

    rows: tuple[NDArray[np.int64], ...]
    sizes: tuple[int, ...]
    with_server: tuple[int, ...]

    @property
    def n(self) -> int:
        """How many records all parties share."""
        return len(self.rows[0])

    def counts(self) -> str:
        """One line for the operator of the server, with counts only: it holds no id and no hash."""
        parties = [f"the server has {self.sizes[0]} rows"]
        for m, (rows, known) in enumerate(zip(self.sizes[1:], self.with_server[1:], strict=True), 1):
            parties.append(f"device {m} has {rows}, {known} of them known to the server")
        return ", ".join(parties) + f", {self.n} are shared by all"


def keyed(ids: Sequence[str], key: bytes) -> NDArray[np.uint8]:
    """Keyed BLAKE2b (RFC 7693) of each id (its UTF-8 bytes) under `key`, 16 bytes long: uint8 [n, 16].

    Two different ids get the same 16 bytes by chance with probability 2^-128 a pair: among a million ids, about
    1.5e-27. Inside one party's file `aligned` would refuse them; between two it would join different records.
    """
    if not KEY_BYTES <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ConfigError(
            f"the key for ids must have {KEY_BYTES} to {hashlib.blake2b.MAX_KEY_SIZE} random bytes, got {len(key)}; "
            "make one and give it to all parties."
        )
    hashes = bytearray()
    for text in ids:
        hashes += hashlib.blake2b(text.encode(), key=key, digest_size=HASH_BYTES).digest()
    return np.frombuffer(hashes, dtype=np.uint8).reshape(-1, HASH_BYTES)


def name_of_key(key: bytes, column: str) -> str:
    """What tells hashes of ids under `key` from others without giving the key away.

    The name of the `column` of ids is part of it: two columns may hold two kinds of ids for the same people. Ledgers
    keep it, so it is a format.
    """
    return hashlib.blake2b(f"column {column}".encode(), key=key, person=b"dpzv key name").hexdigest()


def aligned(server: NDArray[np.uint8], devices: Sequence[NDArray[np.uint8]], least: Fewest = ANY) -> Alignment:
    """The ids that all parties share, sorted by hash; `server` and each of `devices` is uint8 [rows, 16].

    Raises `DataError` if a party repeats a hash, or if fewer ids than `least` are shared; the message gives the counts
    of every party. If at least half of the smallest party's ids are shared, it blames the setting that needs more.
    """
    parties = [_as_words(where, array) for where, array in zip(_names(len(devices)), [server, *devices], strict=True)]
    # the first halves of different ids differ but for a chance of 2^-64 a pair, and numbers are sorted several times as
    # fast as words; where halves do not suffice (nobody has to hash honestly), whole words are compared
    found = _joined(parties, _halves) or _joined(parties, np.asarray)
    if found is None:
        raise DataError(f"every party must name an id once, but {_repeats(parties)}; keep one row an id.")
    if found.n < least.records and least.why and found.n * 2 >= min(found.sizes) > 0:
        raise DataError(
            f"{least.why} needs at least {least.records} records that all parties share, got {found.n}: "
            f"{found.counts()}; {least.remedy}."
        )
    if found.n < least.records:
        raise DataError(
            f"the parties must share at least {least.records} ids, got {found.n}: {found.counts()}; check that all "
            "files write ids alike and all parties have the same key."
        )
    return found


def _joined(parties: Sequence[NDArray[np.bytes_]], key: Callable[[NDArray[Any]], NDArray[Any]]) -> Alignment | None:
    """The records whose keys all parties share, sorted by key; `None` if a key is repeated or stands for two words.

    Ids are joined by ranges of their hashes, one range after the other, so that little is in memory besides the hashes
    of all parties and the row numbers that are found.
    """
    found: list[list[NDArray[np.int64]]] = [[] for _ in parties]
    with_server = [0] * len(parties)
    for part in range(PARTS):
        mine = [np.flatnonzero(words.view(np.uint8)[::HASH_BYTES] // (256 // PARTS) == part) for words in parties]
        joined = _joined_part([words[rows] for words, rows in zip(parties, mine, strict=True)], key)
        if joined is None:
            return None
        for party, (rows, own) in enumerate(zip(joined.rows, mine, strict=True)):
            found[party].append(own[rows])
            with_server[party] += joined.with_server[party]
    whole = []
    for places in found:
        whole.append(np.concatenate(places))
        places.clear()  # so that no rows are in memory twice while the next party's are joined
    return Alignment(rows=tuple(whole), sizes=tuple(map(len, parties)), with_server=tuple(with_server))


def _joined_part(
    parties: Sequence[NDArray[np.bytes_]], key: Callable[[NDArray[Any]], NDArray[Any]]
) -> Alignment | None:
    """What `_joined` finds among words that begin alike."""
    mine = key(parties[0])
    first = np.argsort(mine, kind="stable")  # by default it takes a quarter longer
    own, shared, places, with_server = mine[first], np.ones(len(first), bool), [], [len(first)]
    repeated = bool((own[1:] == own[:-1]).any())
    for words in parties[1:]:
        theirs = key(words)
        order = np.argsort(theirs, kind="stable")
        theirs = theirs[order]
        repeated = repeated or bool((theirs[1:] == theirs[:-1]).any())
        at = np.searchsorted(theirs, own)  # where an id of the server is, or would be, among theirs
        known = at < len(theirs)
        known[known] = theirs[at[known]] == own[known]
        place = np.zeros(len(own), np.int64)
        place[known] = order[at[known]]
        if repeated or bool((words[place[known]] != parties[0][first[known]]).any()):
            return None
        places.append(place)
        with_server.append(int(np.count_nonzero(known)))
        shared &= known
    rows = (first[shared].astype(np.int64, copy=False), *(place[shared] for place in places))
    return Alignment(rows=rows, sizes=tuple(map(len, parties)), with_server=tuple(with_server))


def _names(devices: int) -> list[str]:
    if devices == 0:
        raise ConfigError("records are aligned between the server and devices, got no device; give at least one.")
    return ["the server", *(f"device {m}" for m in range(1, devices + 1))]


def _as_words(where: str, array: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """[rows, 16] bytes as [rows] words, which numpy sorts byte by byte; all are equally long, so none is padded."""
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != HASH_BYTES:
        raise ConfigError(
            f"hashes of {where} must be uint8 [rows, {HASH_BYTES}], got {array.dtype} {list(array.shape)}; use `keyed`."
        )
    return np.ascontiguousarray(array).reshape(-1).view(f"S{HASH_BYTES}")


def _halves(words: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    """The first 8 bytes of every word as a number; numbers have the order of the words that they begin."""
    return words.view(">u8")[::2].astype(np.uint64)


def _repeats(parties: Sequence[NDArray[np.bytes_]]) -> str:
    """How many ids of every party are repeated."""
    again = [len(words) - len(np.unique(words)) for words in parties]
    return ", ".join(
        f"{where} repeats {count} of {len(words)}"
        for where, count, words in zip(_names(len(parties) - 1), again, parties, strict=True)
    )
