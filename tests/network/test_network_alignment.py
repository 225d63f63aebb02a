"""What the server keeps of the alignment: it is on the disk before anything begins on it, and a restart finds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpzv.errors import DataError, PeerError
from dpzv.network.alignment_state import AlignmentState, LabelRecords

N = 40
HASHES = np.random.default_rng(0).integers(0, 256, (N, 16), dtype=np.uint8)


def state(folder: Path, hashes: Any = HASHES) -> AlignmentState:
    labels = LabelRecords(hashes, np.arange(len(hashes)) % 2, "classes", 2, "made up")
    return AlignmentState(folder, labels, 2, 0.25, 1)


def aligned(folder: Path) -> AlignmentState:
    """Two devices, each in an order of its own; the second lacks a record."""
    made = state(folder)
    made.take(1, HASHES[::-1].tobytes())
    made.take(2, HASHES[1:].tobytes())
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
    assert [again.rows(m) for m in (1, 2)] == [first.rows(m) for m in (1, 2)]
    rows = np.frombuffer(again.rows(1).train, np.int64)
    others = np.frombuffer(again.rows(2).train, np.int64)
    assert (HASHES[::-1][rows] == HASHES[1:][others]).all()


def test_other_records_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    aligned(tmp_path)
    with pytest.raises(PeerError, match="device 2 has other record ids than when this run began"):
        state(tmp_path).needs(2, "0" * 64)
    with pytest.raises(DataError, match="the server has other record ids"):
        state(tmp_path, HASHES[1:])


@pytest.mark.parametrize("sent", [bytes(15), bytes(17)])
def test_ids_that_are_no_hashes_are_refused(tmp_path: Path, sent: bytes) -> None:
    with pytest.raises(PeerError, match=f"16 bytes each, got {len(sent)} bytes"):
        state(tmp_path).take(1, sent)
