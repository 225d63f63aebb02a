"""Run records of a reproduction that are kept in one file, and the page that tells them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from benchmarks.reproduction_records import FILES, pack, unpack

from dpzv.cli.reproduce_command import reproduce

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduction.md"


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


def test_the_page_tells_what_the_kept_records_tell(tmp_path: Path) -> None:
    """Which workloads have their records here differs, so rows that were not run are left out."""
    unpack(tmp_path)
    (command,) = [line for line in PAGE.read_text().splitlines() if line.startswith("    dpzv reproduce ")]
    _, _, name, _, scale, *options = shlex.split(command)
    reproduce(name=name, scale=scale, set_=[], data=options[1::2], budget=0.0, out=tmp_path, quiet=True)
    told, shown = (figures(page.read_text()) for page in (tmp_path / "reproduction.md", PAGE))
    assert told.keys() == shown.keys()
    for section, rows in told.items():
        assert shown[section] == rows, section
    assert sum(map(len, told.values())) > 100


def figures(page: str) -> dict[str, list[list[str]]]:
    """The rows of each section that have a figure; of one that was not run it does not matter why."""
    found: dict[str, list[list[str]]] = {}
    for part in page.split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
        rows = [["not run" if cell.startswith("not run") else cell for cell in row] for row in rows]
        first = title.startswith("Every number")  # there a row has several figures
        found[title] = [row for row in rows if first or "not run" not in row]
    return found


NAMES = {"DPZV, first-order head": "DPZV", "devices that never move, same head": "DPZV"}
NAMES |= {"DPZV, zeroth-order head, as in Algorithm 1": "DPZV with the zeroth-order head of Algorithm 1"}


def test_the_readme_has_the_figures_of_the_page() -> None:
    """Its table beside the paper, with fewer digits where a run never came to its target."""
    section = PAGE.read_text().partition("## Every number")[2]
    page = {cells[0]: cells for cells in (line.strip("| ").split(" | ") for line in section.splitlines())}
    table = (ROOT / "README.md").read_text().partition("| megabytes until the target |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for name, *cells in rows:
        frozen, found = "never move" in name, []
        for target in ("MNIST, MB until 90 %", "CIFAR-10, MB until 40 %"):
            _, paper, ours, _, untrained, _ = page[f"{target}, {NAMES.get(name, name)}"]
            found += ["-" if frozen else short(paper), short(untrained if frozen else ours)]
        assert cells == found, name


def short(figure: str) -> str:
    """A figure of the page as the README has it."""
    figure = figure.partition(";")[0]
    if ended := re.match(r"never in ([\d.]+), ends at ([\d.]+)", figure):
        return f"never in {float(ended[1]):,.0f} ({float(ended[2]):.0f} %)"
    if some := re.match(r"([\d.]+) \(([12]) of 3\)", figure):
        return f"{some[1]} in {('one', 'two')[int(some[2]) - 1]} of three seeds"
    if reached := re.match(r"([\d.]+ ± [\d.]+), ends", figure):
        return reached[1]
    return figure if figure == "never" else f"{float(figure.split()[0]):,.0f}"
