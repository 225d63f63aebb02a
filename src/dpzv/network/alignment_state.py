"""Which records the parties share: found before the first round, and kept in the run folder for a restart."""

from __future__ import annotations

import hashlib
import math
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import torch
from numpy.typing import NDArray

from dpzv.data.alignment import ANY, Fewest, aligned
from dpzv.data.dataset import ServerRecords, outputs_of
from dpzv.data.schedule import holdout
from dpzv.durable import readable, write_tensors
from dpzv.errors import ConfigError, DataError, PeerError, PeerRefused
from dpzv.network.feature_records import Digests
from dpzv.network.hidden_ids import HiddenIds
from dpzv.network.wire import ROWS, Rows
from dpzv.privacy.record_names import RecordNames
from dpzv.terms import Task

__all__ = ["AlignmentState", "LabelRecords", "digest_of"]

FILE = "alignment.safetensors"
ONE_BY_ONE = threading.Lock()
"""A lock for work that needs memory for every record: one device at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelRecords:
    """The server's own records: hashed ids uint8 [n, 16], labels [n], their task, and a name for them.

    `key` names the secret key of the hashes; if it is empty, hashes of two runs cannot be compared.
    """

    hashes: NDArray[np.uint8]
    y: NDArray[Any]
    task: Task
    n_classes: int
    name: str
    key: str = ""
    meaning: dict[str, str] = field(default_factory=dict)
    """What the labels' numbers mean, in words that a restart compares: the column, the task, its classes or range."""
    unit: float = 1.0
    """What a 1 in the labels of a regression stands for in the units of the label column."""


class AlignmentState:
    """Which devices have sent ids and, once all have, every party's rows."""

    def __init__(
        self, folder: Path, labels: LabelRecords, M: int, share: float, least: Fewest = ANY, psi: bool = False
    ) -> None:
        """A `share` of the records is for tests; fewer shared records than `least` are refused.

        With `psi` the ids that the server does not have itself stay hidden from it.
        """
        self._file, self._labels, self._M, self._share, self._least = folder / FILE, labels, M, share, least
        self._sent: dict[int, tuple[NDArray[np.uint8], str]] = {}  # by device: its hashed ids, and their SHA-256
        self.complete = False  # whether the shared records are known; rows are read from the file when they are needed
        self._digests: dict[int, str] = {}
        self._bound: dict[int, Digests] = {}  # what each device said of its encoding and its records
        self.counts = ""
        self._psi = psi
        self.hidden = self.hiding(labels.hashes)
        if self._file.exists():
            self._load()

    def hiding(self, hashes: NDArray[np.uint8]) -> HiddenIds | None:
        """How the server hides these ids of its own from devices; `None` where ids are compared as hashes."""
        return HiddenIds(hashes) if self._psi else None

    @property
    def missing(self) -> list[int]:
        """The devices that have not sent their ids."""
        return [] if self.complete else [m for m in range(1, self._M + 1) if m not in self._sent]

    def needs(self, m: int, ids_sha256: str) -> bool:
        """Whether device m must send its ids; raises `PeerError` if they are not those the run began with."""
        if not self.complete:
            return m not in self._sent or self._sent[m][1] != ids_sha256
        if self._digests[m] != ids_sha256:
            folder = "" if self.hidden is None else " and the folder, which has the key that hides its ids,"
            raise PeerRefused(
                f"device {m} has other record ids than when this run began; give it the file{folder} that it had then, "
                "or start a new run."
            )
        return False

    def bind(self, m: int, digests: Digests) -> None:
        """Note what device m says of its encoding and records; once the run has begun, refuse anything else."""
        if not self.complete:
            self._bound[m] = digests
            return
        self.check_encoding(m, digests)
        if self._bound[m].records != digests.records:
            raise PeerRefused(
                f"device {m} has other features than when this run began; give it the file that it had then, or start "
                "a new run."
            )

    def check_encoding(self, m: int, digests: Digests) -> None:
        """Refuse a device that encodes its columns otherwise than when the run began; its records may be new ones."""
        if self._bound[m].encoding != digests.encoding:
            raise PeerRefused(
                f"device {m} encodes its columns otherwise than when this run began; give it the settings that it had "
                "then, or start a new run."
            )

    def take(self, m: int, hashes: NDArray[np.uint8], digest: str) -> None:
        """Take device m's hashed ids and their digest, which `digest_of` made."""
        if self.complete:
            raise PeerError(f"device {m} may send its ids only before the run begins; its link is closed.")
        self._sent[m] = hashes, digest

    def settle(self) -> None:
        """Find and store the records that all parties share, once all devices have sent their ids.

        This may take minutes; meanwhile other methods may be called. Ids that come meanwhile do not count.
        """
        sent, bound = dict(self._sent), dict(self._bound)
        devices = range(1, self._M + 1)
        found = aligned(self._labels.hashes, [sent[m][0] for m in devices], self._least)
        counts = found.counts()
        digests = {0: _sha256(self._labels.hashes)} | {m: sent[m][1] for m in devices}
        # the names are the format of the file: party 0 is the server, party m is device m
        metadata = {"counts": counts} | {f"party-{p}": digest for p, digest in digests.items()}
        meant = [bound.setdefault(m, Digests()) for m in devices]
        metadata["bound"] = msgspec.json.encode(meant).decode()
        metadata["labels"] = msgspec.json.encode(self._labels.meaning).decode()
        write_tensors(self._file, {f"party-{p}": torch.from_numpy(r) for p, r in enumerate(found.rows)}, metadata)
        self.counts, self._digests, self._bound = counts, digests, bound
        self.complete, self._sent = True, {}  # set last, since other threads look at `complete` meanwhile

    def rows(self, m: int, mu_start: float = math.inf) -> tuple[Rows, NDArray[np.int64]]:
        """What device m is told: the numbers of its rows follow, those trained on first, in the common order.

        `mu_start` is the mu that its private start may cost.
        """
        with ONE_BY_ONE:
            train, test = self._parts(m)
            return Rows(len(train), len(test), mu_start), np.concatenate([train, test]).astype(ROWS, copy=False)

    def records(self) -> ServerRecords:
        """What the server knows about the shared records, in the common order.

        Before the shared records are known, all of the server's records stand for them; no run can have more.
        """
        own, (train, test) = self._labels, self._parts(0)
        outputs = outputs_of(own.task, own.n_classes)
        # a ledger keeps the fingerprint, so these parts and their order are a format
        hashes, y, fingerprint = own.hashes[train], own.y[train], hashlib.sha256()
        for part in (hashes, y):
            fingerprint.update(np.ascontiguousarray(part).data)
        names = RecordNames.of_hashes(own.key, hashes)
        return ServerRecords(own.name, own.task, outputs, y, own.y[test], fingerprint.hexdigest(), names, own.unit)

    def _parts(self, party: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = self._rows_of(party) if self.complete else np.arange(len(self._labels.hashes))
        train, test = holdout(len(rows), self._share)
        return rows[train], rows[test]

    def _rows_of(self, party: int) -> NDArray[np.int64]:
        """The rows of a party, from the file: with millions of records they are needed too rarely to be kept."""
        with self._readable(), safetensors.safe_open(self._file, "np") as file:
            rows: NDArray[np.int64] = file.get_tensor(f"party-{party}")
        return rows

    def _readable(self) -> AbstractContextManager[None]:
        return readable(self._file, "the alignment of this run", "start a new run")

    def _load(self) -> None:
        with self._readable():
            with safetensors.safe_open(self._file, "np") as file:
                metadata = file.metadata()
                if not {f"party-{p}" for p in range(self._M + 1)} <= set(file.keys()):
                    raise KeyError("rows of a party")
            self._digests = {p: metadata[f"party-{p}"] for p in range(self._M + 1)}
            self.counts = metadata["counts"]
            self._bound = dict(enumerate(msgspec.json.decode(metadata["bound"], type=list[Digests]), 1))
            meant = msgspec.json.decode(metadata["labels"], type=dict[str, str])
        self.complete = True
        if self._digests[0] != _sha256(self._labels.hashes):
            raise DataError(
                "the server has other record ids than when this run began; give it the file that it had then, or start "
                "a new run."
            )
        for name in sorted(meant.keys() | self._labels.meaning.keys()):
            before, now = meant.get(name, "nothing"), self._labels.meaning.get(name, "nothing")
            if before != now:
                raise ConfigError(
                    f"data.labels.{name} was {before} when this run began and is {now} now, so the head's numbers "
                    "would mean something else; put back what was there, or start a new run."
                )


def digest_of(m: int, hashes: NDArray[np.uint8]) -> str:
    """The SHA-256 of device m's hashed ids, uint8 [n, 16]; refuses ids that repeat. For millions it takes seconds."""
    with ONE_BY_ONE:
        words = np.sort(hashes.view(np.uint64)[:, 0])  # the halves of two ids are equal by chance 1 in 2^64
        again = int(np.count_nonzero(words[1:] == words[:-1]))
    if again:
        raise PeerRefused(
            f"device {m} must name every id once, but {again} of {len(words)} repeat another; keep one row for each id."
        )
    return _sha256(hashes)


def _sha256(hashes: NDArray[np.uint8]) -> str:
    return hashlib.sha256(np.ascontiguousarray(hashes).reshape(-1).data).hexdigest()
