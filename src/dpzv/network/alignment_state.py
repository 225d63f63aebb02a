"""Which records the parties share: found before the first round, and kept in the run folder for a restart."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import torch
from numpy.typing import NDArray

from dpzv.data.alignment import Alignment, aligned
from dpzv.data.dataset import ServerRecords
from dpzv.data.schedule import holdout
from dpzv.durable import write_tensors
from dpzv.errors import ConfigError, DataError, PeerError, PeerRefused
from dpzv.network.feature_records import Digests
from dpzv.network.wire import Rows
from dpzv.privacy.record_names import RecordNames
from dpzv.terms import Task

__all__ = ["AlignmentState", "LabelRecords"]

FILE = "alignment.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class LabelRecords:
    """The server's own records: hashed ids uint8 [n, 16], labels [n], their task, and a name for them.

    `key` stands for the secret key of the hashes; empty: hashes of two runs cannot be compared.
    """

    hashes: NDArray[np.uint8]
    y: NDArray[Any]
    task: Task
    n_classes: int
    name: str
    meaning: dict[str, str] = field(default_factory=dict)
    """What the labels' numbers mean, in words that are compared: the column, the task, and its classes or its range."""
    key: str = ""


class AlignmentState:
    """Which devices have sent ids and, once all have, every party's rows."""

    def __init__(self, folder: Path, labels: LabelRecords, M: int, share: float, least: int) -> None:
        """A `share` of the records is for tests; fewer shared records than `least` are refused."""
        self._file, self._labels, self._M, self._share, self._least = folder / FILE, labels, M, share, least
        self._hashes: dict[int, bytes] = {}
        self._rows: dict[int, NDArray[np.int64]] = {}
        self._digests: dict[int, str] = {}
        self._bound: dict[int, Digests] = {}  # what each device said of its encoding and its records
        self.counts = ""
        if self._file.exists():
            self._load()

    @property
    def complete(self) -> bool:
        """Whether the shared records are known."""
        return bool(self._rows)

    @property
    def missing(self) -> list[int]:
        """The devices that have not sent their ids."""
        return [] if self.complete else [m for m in range(1, self._M + 1) if m not in self._hashes]

    def needs(self, m: int, ids_sha256: str) -> bool:
        """Whether device m must send its ids; raises `PeerError` if they are not those the run began with."""
        if not self.complete:
            return m not in self._hashes or hashlib.sha256(self._hashes[m]).hexdigest() != ids_sha256
        if self._digests[m] != ids_sha256:
            raise PeerRefused(
                f"device {m} has other record ids than when this run began; give it the file that it had then, or "
                "start a new run."
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

    def take(self, m: int, hashes: bytes) -> None:
        """Take device m's hashed ids; once all devices have sent theirs, find and store the shared records."""
        if len(hashes) % 16 or self.complete:
            raise PeerError(
                f"device {m} must send its hashed ids once, 16 bytes each, got {len(hashes)} bytes; its link is closed."
            )
        words = np.sort(np.frombuffer(hashes, np.uint64)[::2])  # the halves of two ids are equal by chance 1 in 2^64
        if again := int(np.count_nonzero(words[1:] == words[:-1])):
            raise PeerRefused(
                f"device {m} must name every id once, but {again} of {len(words)} repeat another; keep one row an id."
            )
        self._hashes[m] = hashes
        if len(self._hashes) == self._M:
            arrays = [np.frombuffer(self._hashes[m], np.uint8).reshape(-1, 16) for m in range(1, self._M + 1)]
            self._settle(aligned(self._labels.hashes, arrays, self._least))

    def rows(self, m: int, mu_start: float = math.inf) -> Rows:
        """What device m is told: its rows, in the common order, and the mu that its private start may cost."""
        train, test = self._parts(m)
        return Rows(train.tobytes(), test.tobytes(), mu_start)

    def records(self) -> ServerRecords:
        """What the server knows about the shared records, in the common order."""
        own, (train, test) = self._labels, self._parts(0)
        outputs = own.n_classes if own.task == "classes" else 1
        # a ledger keeps the fingerprint, so these parts and their order are a format
        fingerprint = hashlib.sha256(own.hashes[train].tobytes() + own.y[train].tobytes()).hexdigest()
        names = RecordNames.of_hashes(own.key, own.hashes[train])
        return ServerRecords(own.name, own.task, outputs, own.y[train], own.y[test], fingerprint, names)

    def _parts(self, party: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = self._rows[party]
        train, test = holdout(len(rows), self._share)
        return rows[train], rows[test]

    def _settle(self, found: Alignment) -> None:
        counts, ids = found.counts(), {0: self._labels.hashes.tobytes(), **self._hashes}
        digests = {party: hashlib.sha256(data).hexdigest() for party, data in ids.items()}
        # the names are the format of the file: party 0 is the server, party m is device m
        metadata = {"counts": counts} | {f"party-{p}": digest for p, digest in digests.items()}
        bound = [self._bound.setdefault(m, Digests()) for m in range(1, self._M + 1)]
        metadata["bound"] = msgspec.json.encode(bound).decode()
        metadata["labels"] = msgspec.json.encode(self._labels.meaning).decode()
        write_tensors(self._file, {f"party-{p}": torch.from_numpy(r) for p, r in enumerate(found.rows)}, metadata)
        self.counts, self._digests, self._rows = counts, digests, dict(enumerate(found.rows))

    def _load(self) -> None:
        try:
            with safetensors.safe_open(self._file, "np") as file:
                metadata = file.metadata()
                self._rows = {p: file.get_tensor(f"party-{p}") for p in range(self._M + 1)}
            self._digests = {p: metadata[f"party-{p}"] for p in range(self._M + 1)}
            self.counts = metadata["counts"]
            self._bound = dict(enumerate(msgspec.json.decode(metadata["bound"], type=list[Digests]), 1))
            meant = msgspec.json.decode(metadata["labels"], type=dict[str, str])
        except (safetensors.SafetensorError, msgspec.MsgspecError, KeyError, OSError) as error:
            raise DataError(f"{self._file} is not the alignment of this run ({error}); start a new run.") from None
        if self._digests[0] != hashlib.sha256(self._labels.hashes.tobytes()).hexdigest():
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
