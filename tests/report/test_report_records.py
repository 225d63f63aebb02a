"""Run records of a reproduction that are kept in one file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reproduction_records import FILES, pack, unpack


def test_kept_records_become_finished_runs_and_are_packed_as_they_were(tmp_path: Path) -> None:
    count = unpack(tmp_path / "one")
    assert count > 0
    assert unpack(tmp_path / "one") == 0  # what is there stays as it is
    (tmp_path / "one" / "runs" / "unfinished").mkdir()
    assert pack(tmp_path / "one", tmp_path / "again.xz") == unpack(tmp_path / "two", tmp_path / "again.xz") == count
    for summary in (tmp_path / "one" / "runs").glob("*/summary.json"):
        for name in FILES:
            first, second = (tmp_path / place / "runs" / summary.parent.name / name for place in ("one", "two"))
            assert first.exists() == second.exists()
            assert not first.exists() or first.read_text() == second.read_text()
