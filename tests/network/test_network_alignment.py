"""What the server keeps of the alignment: it is on the disk before anything begins on it, and a restart finds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpzv.data import alignment as data_alignment
from dpzv.data.alignment import Fewest
from dpzv.errors import DataError, PeerError
from dpzv.network import alignment_state
from dpzv.network.alignment_state import AlignmentState, LabelRecords, digest_of

N = 40
HASHES = np.random.default_rng(0).integers(0, 256, (N, 16), dtype=np.uint8)
OWN = (np.ascontiguousarray(HASHES[::-1]), np.ascontiguousarray(HASHES[1:]))


def state(folder: Path, hashes: Any = HASHES) -> AlignmentState:
    labels = LabelRecords(hashes, np.arange(len(hashes)) % 2, "classes", 2, "made up")
    return AlignmentState(folder, labels, 2, 0.25, Fewest())


def aligned(folder: Path) -> AlignmentState:
    """Two devices, each in an order of its own; the second lacks a record."""
    made = state(folder)
    for m, hashes in enumerate(OWN, 1):
        made.take(m, hashes, digest_of(m, hashes))
    made.settle()
    return made


def test_the_alignment_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the rename must not leave an empty file: the bytes are synced first, under their other name."""
    happened: list[tuple[str, Path]] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        happened.append(("synced", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    def replaced(source: Any, target: Any, **more: Any) -> None:
        happened.append(("renamed", Path(source)))
        replace(source, target, **more)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    aligned(tmp_path)
    assert (tmp_path / "alignment.safetensors").exists()
    renames = [i for i, (what, _) in enumerate(happened) if what == "renamed"]
    assert len(renames) == 1
    assert ("synced", happened[renames[0]][1]) in happened[: renames[0]]


def test_a_restart_finds_the_alignment(tmp_path: Path) -> None:
    first, again = aligned(tmp_path), state(tmp_path)
    assert again.complete
    assert again.counts == first.counts
    assert again.records().fingerprint == first.records().fingerprint
    told = [again.rows(m) for m in (1, 2)]
    for m, (counts, numbers) in enumerate(told, 1):
        assert counts == first.rows(m)[0]
        assert (counts.train + counts.test, numbers.dtype) == (N - 1, np.dtype("<i8"))
        assert (numbers == first.rows(m)[1]).all()
    assert (OWN[0][told[0][1]] == OWN[1][told[1][1]]).all()


def test_other_records_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    aligned(tmp_path)
    with pytest.raises(PeerError, match="device 2 has other record ids than when this run began"):
        state(tmp_path).needs(2, "0" * 64)
    with pytest.raises(DataError, match="the server has other record ids"):
        state(tmp_path, HASHES[1:])


def test_ids_that_come_while_records_are_aligned_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that comes back with other ids meanwhile is refused, instead of being told rows of its earlier file."""
    made, other = state(tmp_path), np.ascontiguousarray(OWN[1][::-1])
    digests = [digest_of(m, hashes) for m, hashes in enumerate(OWN, 1)]
    for m, hashes in enumerate(OWN, 1):
        made.take(m, hashes, digests[m - 1])

    def meanwhile(*parties: Any) -> Any:
        made.take(2, other, digest_of(2, other))
        return data_alignment.aligned(*parties)

    monkeypatch.setattr(alignment_state, "aligned", meanwhile)
    made.settle()
    assert not made.needs(2, digests[1])
    with pytest.raises(PeerError, match="device 2 has other record ids"):
        made.needs(2, digest_of(2, other))
    with pytest.raises(PeerError, match="only before the run begins"):
        made.take(2, OWN[1], digests[1])
