"""`dpzv compare --widths` with real runs in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

SHORT = [
    "noise.source=seeded",
    "runtime.threads=1",
    "train.rounds=6",
    "head.rule=frozen",
    "head.refit_steps=100",
    "data.devices=[1,3]",
]
SETS = [part for setting in SHORT for part in ("--set", setting)]
COMPARE = ["compare", "breast-cancer", "--widths", "4,1", "--epsilon", "5", "--seeds", "1", *SETS]


def summary_of(out: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The summary of the only run of a row."""
    names = {"mean": "alone1", "worst": "alone3"}
    spends = "" if row["kind"] in ("untrained", "backpropagation") else f"-eps{row['epsilon'] or float('inf'):g}"
    start = f"{names.get(row['party'], row['kind'])}-width{row['width']}{spends}-seed0-"
    (file,) = out.glob(f"runs/{start}*/summary.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.soak
def test_the_table_holds_what_the_summaries_say_and_a_second_call_runs_nothing_again(cli: Cli, tmp_path: Path) -> None:
    done = cli(*COMPARE, "--out", "out")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    rows = json.loads((out / "table.json").read_text())["rows"]
    kinds = ["untrained", "trained", "trained", "backpropagation", "alone", "alone"]
    assert [(row["width"], row["kind"]) for row in rows] == [(width, kind) for width in (1, 4) for kind in kinds]
    assert [row["epsilon"] for row in rows[1:4]] == [5, None, None]
    for row in rows:
        summary = summary_of(out, row)
        assert row["mean"] == summary["test_auc"]
        assert row["values"] == {"0": summary["test_auc"]}
        if row["kind"] == "backpropagation":
            assert row["bytes_total"] is None
        else:
            assert row["bytes_total"] == summary["bytes_up"] + summary["bytes_down"]
            assert len(summary["participation"]) == (1 if row["party"] else 2)
    sent = {row["width"]: summary_of(out, row)["bytes_initial"] for row in rows if row["kind"] == "untrained"}
    numbers = [summary_of(out, row)["payload_bytes"] for row in rows if row["kind"] == "untrained"]
    assert numbers[1] == 4 * numbers[0]  # embeddings alone are four times as long
    assert sent[4] > 3 * sent[1]
    for words in ("One upload of untrained embeddings of width 4", "the best party alone", "a ceiling, never a recipe"):
        assert words in done.stdout
    assert ">untrained</text>" in (out / "figure.svg").read_text()
    assert "backpropagation-width" in (out / "report.html").read_text()

    before = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/*")}
    again = cli(*COMPARE, "--out", "out", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rows"] == rows
    assert {file: file.stat().st_mtime_ns for file in out.glob("runs/*/*")} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--widths", "1,two"], ["--widths", "1,two"]),
        (["--widths", "0"], ["--widths", "at least 1"]),
        (["--widths", "1", "--methods", "vafl"], ["--widths compares widths of one method", "vafl"]),
        (["--widths", "1", "--set", "train.rounds=0"], ["train.rounds must be at least 1", "got 0"]),
    ],
)
def test_bad_widths_are_one_sentence_and_start_nothing(
    cli: Cli, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = cli("compare", "digits", *arguments)
    assert done.returncode == 2, done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    assert all(word in sentence for word in words)
    assert list(tmp_path.iterdir()) == []
