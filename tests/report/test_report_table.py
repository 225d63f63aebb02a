"""Rows from records by hand-computed figures, what stands above and below a table, and the figure as a file."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from dpzv.metrics import Metrics, headline, headline_text
from dpzv.report import comparison as table
from dpzv.report.comparison import UNTRAINED, Record
from dpzv.report.table_text import columned, paged
from tests.report.conftest import texts


def record(
    method: str, epsilon: float | None, seed: int, accuracy: float, reached: int | None = None, **changes: Any
) -> Record:
    """A run with the given test accuracy that passed 90 % after `reached` bytes."""
    metrics = {"test_accuracy": accuracy, "test_auc": None, "test_loss": 0.5}
    summary = {
        **metrics,
        "private_head": {**metrics, "test_accuracy": accuracy - 0.01},
        "targets": {} if reached is None else {"0.9": {"round": reached // 1000, "bytes": reached}},
        "rounds": 100,
        "bytes_up": 7_000_000,
        "bytes_down": 1_000_000 + seed,
        "virtual_seconds": 2.0 + seed,
        "mean_delay": 1.5,
        "guarantee": False,
        "guarantee_why": "the noise is seeded",
        **changes,
    }
    lines = [{"round": t, "bytes_up": 1000 * t, "bytes_down": t, **metrics} for t in (0, 50, 100)]
    return Record(method, epsilon, seed, summary, lines)


RECORDS = [
    record(UNTRAINED, 0.0, 0, 0.85, rounds=0),
    record("dpzv", 1.0, 0, 0.95, 4_000_000),
    record("dpzv", 1.0, 1, 0.93, 6_000_000),
    record("dpzv", 1.0, 2, 0.97, 5_000_000),
    record("vafl", 1.0, 0, 0.91, 3_000_000),
    record("vafl", 1.0, 1, 0.89),
    record("vafl", 1.0, 2, 0.9, 2_000_000),
    record("zoo-vfl", 1.0, 0, 0.5),
    record("zoo-vfl", None, 0, 0.5, guarantee_why="no privacy was asked for"),
]


TUNED = {"dpzv": 16, "vafl": 16, "zoo-vfl": 16}


def test_methods_that_nobody_tuned_are_marked_and_named() -> None:
    rows = table.rows(RECORDS, 0.9, {}, {"dpzv": 16, "zoo-vfl": 16})
    names = [table.cells(row)[0] for row in rows]
    assert names == ["untrained", "dpzv", "vafl (untuned)", "zoo-vfl", "zoo-vfl"]
    (sentence,) = table.untuned(rows, "digits")
    assert sentence.startswith("Untuned for digits: vafl. ")
    assert table.untuned(table.rows(RECORDS, 0.9, {}, TUNED), "digits") == []
    (sentence,) = table.untuned(table.rows(RECORDS, 0.9, {}, {**TUNED, "vafl": 3}), "digits")
    assert "unequal numbers of trials: dpzv 16, vafl 3, zoo-vfl 16" in sentence


def test_two_classes_are_told_by_area_and_by_accuracy() -> None:
    runs = [record("dpzv", 1.0, seed, 0.8 + 0.01 * seed, test_auc=0.9) for seed in (0, 2)]
    for run in runs:
        run.summary["private_head"]["test_auc"] = 0.88
    rows = table.rows(runs, 0.9, {}, TUNED)
    assert table.header(rows)[2:5] == ["AUC, refitted", "AUC, in loop", "accuracy, refitted"]
    assert table.cells(rows[0])[2:5] == ["0.9000 ± 0.0000", "0.8800 ± 0.0000", "81.00 ± 1.41 %"]
    assert len(table.cells(rows[0])) == len(table.header(rows))
    assert "accuracy, refitted" not in table.header(table.rows(RECORDS, 0.9, {}, TUNED))[4:]


def test_means_spreads_and_targets_are_those_computed_by_hand() -> None:
    frozen, dpzv, vafl, zoo, _ = table.rows(RECORDS, 0.9, {"vafl": 1.4}, TUNED)
    assert (dpzv.seeds, dpzv.reached, vafl.reached, zoo.reached, frozen.reached) == (3, 3, 2, 0, 0)
    assert dpzv.refitted == pytest.approx(0.95)
    assert dpzv.refitted_spread == pytest.approx(0.02)  # sqrt((0 + 0.02^2 + 0.02^2) / 2)
    assert dpzv.in_loop == pytest.approx(0.94)
    assert dpzv.bytes_to_target == pytest.approx(5_000_000)
    assert dpzv.rounds_to_target == pytest.approx(5000)
    assert vafl.bytes_to_target == pytest.approx(2_500_000)
    assert zoo.bytes_to_target is None
    assert dpzv.bytes_total == 8_000_001
    assert dpzv.virtual_seconds == 3.0
    assert (dpzv.compute, vafl.compute) == (1.0, 1.4)
    assert zoo.refitted_spread == 0


def test_cells_say_in_words_what_was_reached() -> None:
    frozen, dpzv, vafl, zoo, none = map(table.cells, table.rows(RECORDS, 0.9, {}, TUNED))
    assert dpzv == ["dpzv", "1", "95.00 ± 2.00 %", "94.00 ± 2.00 %", "5.0", "5000", "8.0", "3.0", "1.50", "no"]
    assert vafl[4:6] == ["2.5 (2 of 3)", "2500 (2 of 3)"]
    assert zoo[2:6] == ["50.00 %", "49.00 %", "never", "never"]
    assert none[1] == "none"
    assert frozen[:6] == ["untrained", "0", "85.00 %", "-", "-", "-"]


def test_a_rival_with_fewer_bytes_is_named_first() -> None:
    rows = table.rows(RECORDS, 0.9, {}, TUNED)
    (sentence,) = table.ahead(rows)
    assert sentence.startswith("vafl reached 90 % with fewer bytes than dpzv at epsilon 1: 2.5 MB (2 of 3)")
    assert "dpzv needed 5.0 MB" in sentence
    assert paged(table.header(rows), [], [sentence], ["below"]).startswith(sentence)
    slower = [r for r in RECORDS if r.method != "vafl"] + [record("vafl", 1.0, 0, 0.95, 5_000_001)]
    assert table.ahead(table.rows(slower, 0.9, {}, TUNED)) == []
    never = [record("dpzv", 1.0, 0, 0.5), record("vafl", 1.0, 0, 0.95, 9), record("vafl", 2.0, 0, 0.95, 9)]
    (sentence,) = table.ahead(table.rows(never, 0.9, {}, TUNED))
    assert "dpzv never did" in sentence


def test_the_notes_name_missing_seeds_compute_and_each_reason_once() -> None:
    notes = table.notes(table.rows(RECORDS, 0.9, {"vafl": 1.4}, TUNED), 3, 100)
    assert "zoo-vfl at epsilon 1: 1 of 3 seeds finished." in notes
    assert "zoo-vfl at no privacy: 1 of 3 seeds finished." in notes
    assert any("dpzv 1, vafl 1.4, zoo-vfl 1." in note for note in notes)
    assert "No guarantee for untrained, dpzv, vafl, zoo-vfl at epsilon 1: the noise is seeded." in notes
    assert "No guarantee for zoo-vfl at no privacy: no privacy was asked for." in notes


def test_plain_text_is_aligned_and_markdown_has_as_many_cells_as_columns() -> None:
    rows = table.rows(RECORDS, 0.9, {}, TUNED)
    lines = columned([table.header(rows), *map(table.cells, rows)]).splitlines()
    assert len(lines) == 1 + len(rows)
    assert {line[lines[0].index("epsilon") - 1] for line in lines} == {" "}
    marks = [
        line.count("|") for line in paged(table.header(rows), list(map(table.cells, rows)), [], []).strip().splitlines()
    ]
    assert marks == [len(table.header(rows)) + 1] * (2 + len(rows))


def test_without_a_target_there_are_no_columns_for_it() -> None:
    rows = table.rows(RECORDS, None, {}, TUNED)
    assert not any("until" in name for name in table.header(rows))
    assert len(table.cells(rows[1])) == len(table.header(rows)) == 8
    assert table.ahead(rows) == []


def test_the_headline_is_auc_then_accuracy_then_r2_then_loss() -> None:
    values = {"test_auc": 0.7, "test_accuracy": 0.8, "test_loss": 0.3}
    assert headline(values) == ("auc", 0.7)
    assert headline({**values, "test_auc": None}) == ("accuracy", 0.8)
    assert headline({**values, "test_auc": None, "test_accuracy": None}) == ("loss", 0.3)
    assert headline_text(values) == headline_text(Metrics(0.8, 0.7, 0.3)) == "AUC 0.7000"
    assert headline_text(Metrics(0.8, None, 0.3)) == "80.00 %"
    assert headline_text(Metrics(None, None, 0.3)) == "loss 0.3000"
    assert headline(Metrics(None, None, 0.3, -0.5, 1234.56)) == ("r2", -0.5)
    assert headline_text(Metrics(None, None, 0.3, -0.5, 1234.56)) == "R^2 -0.5000, RMSE 1235"
    rows = table.rows([record("dpzv", 1.0, seed, 0.9, test_auc=0.7 + seed / 10) for seed in (0, 1)], None, {}, TUNED)
    assert table.cells(rows[0])[2] == f"0.7500 ± {statistics.stdev([0.7, 0.8]):.4f}"


def climbing(method: str, end: float) -> Record:
    """A run that is at 10 % when it begins, and near `end` from its middle on."""
    run = record(method, 1.0, 0, end)
    heights = (0.1, 0.1 + end / 3, end - 0.02, end)
    lines = [{"round": t, "bytes_up": 1e6 * t, "bytes_down": t, "test_accuracy": a} for t, a in enumerate(heights, 1)]
    return Record(method, 1.0, 0, run.summary, lines)


@pytest.mark.parametrize(("worst", "lowest"), [(0.9, 80.0), (0.15, 10.0)])
def test_the_axis_shows_where_lines_end_and_not_where_they_begin(tmp_path: Path, worst: float, lowest: float) -> None:
    """A rival that stays low is in the figure; a climb that all lines share does not take four fifths of it."""
    file = tmp_path / "figure.svg"
    table.draw([climbing("dpzv", 0.97), climbing("vafl", worst)], 0.9, "mnist, exact accounting", file)
    words = texts(file)
    assert {"dpzv", "vafl", "target, 90 %", "mnist, exact accounting"} <= set(words)
    start, end = words.index("megabytes sent, first fill included"), words.index("test accuracy in the loop, %")
    ticks = [float(word) for word in words[start + 1 : end]]
    assert len(ticks) >= 4
    assert lowest <= min(ticks) <= 100 * worst + 5
    assert max(ticks) >= 95


def test_the_figure_is_the_same_file_for_the_same_runs(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        table.draw(RECORDS, 0.9, "digits, paper accounting", tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
