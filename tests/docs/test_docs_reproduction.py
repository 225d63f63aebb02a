"""docs/reproduction.md says what the kept run records say, and no figure beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reproduction_records import pack, unpack
from dpzv.report.reproduced import ItemRuns, read_runs
from dpzv.report.reproduction_page import tell_item
from dpzv.runtime.reproduction import ITEMS, TUNING, Asked, cells_of, item_of, workloads

PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduction")
    assert unpack(folder) > 0
    return folder


@pytest.mark.parametrize("name", [TUNING, *ITEMS])
def test_the_rows_of_the_page_are_those_of_the_kept_records(name: str, out: Path) -> None:
    item = item_of(name)
    lines = read_runs(cells_of(item, Asked("full", out)), out)
    told = tell_item(ItemRuns(name, item, workloads(), lines), out)
    page = PAGE.read_text().split(f"\n## {name}: ")[1].split("\n## ")[0]
    shown = {line for line in page.splitlines() if line.startswith("| ") and "not run" not in line}
    rows = {f"| {' | '.join(row)} |" for row in told.rows if not any("not run" in cell for cell in row)}
    assert rows == shown - {f"| {' | '.join(told.header)} |", "| --- |" + " --- |" * (len(told.header) - 1)}


def test_records_that_are_packed_again_are_the_same(out: Path, tmp_path: Path) -> None:
    assert pack(out, tmp_path / "again.xz") == unpack(tmp_path / "other", tmp_path / "again.xz") > 0
    for summary in (out / "runs").glob("*/summary.json"):
        assert (tmp_path / "other" / "runs" / summary.parent.name / "summary.json").read_text() == summary.read_text()
