"""Rows by width from hand-computed figures, the sentences below the table, and the figure as a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpzv.report import widths as table
from dpzv.report.widths import ALONE, BACKPROPAGATION, TRAINED, UNTRAINED, Measured
from tests.report.conftest import texts

INF = math.inf


def measured(kind: str, width: int, epsilon: float, seed: int, auc: float, party: str = "", sent: int = 0) -> Measured:
    """A run of two classes with this area under the curve that sent so many bytes."""
    summary: dict[str, Any] = {"test_accuracy": 0.8, "test_auc": auc, "test_loss": 0.5, "seed": seed}
    if kind != BACKPROPAGATION:
        noised = {"guarantee": kind == UNTRAINED, "guarantee_why": "the noise is seeded"}
        summary |= {"bytes_up": sent, "bytes_down": 1, "epsilon": 0.0 if kind == UNTRAINED else epsilon, **noised}
    return Measured(kind, party, width, epsilon, seed, summary)


RUNS = [
    measured(kind, width, epsilon, seed, base + 0.01 * width + 0.001 * seed * slope, party, sent)
    for width in (1, 4)
    for kind, epsilon, base, slope, party, sent in [
        (UNTRAINED, 1.0, 0.55, 1, "", 500_000 * width),
        (TRAINED, 1.0, 0.70, 2, "", 9_000_000 * width),
        (TRAINED, INF, 0.72, 1, "", 9_000_000 * width),
        (BACKPROPAGATION, INF, 0.74, 1, "", 0),
        (ALONE, 1.0, 0.60, 1, "weather", 9_000_000 * width),
        (ALONE, 1.0, 0.52, 1, "registry", 9_000_000 * width),
    ]
    for seed in (0, 1, 2)
]


def test_a_row_holds_the_mean_the_standard_error_and_the_bytes_of_its_runs() -> None:
    rows = table.rows(RUNS)
    assert [row.width for row in rows] == [1] * 6 + [4] * 6
    trained = rows[1]
    assert trained.values == pytest.approx({0: 0.71, 1: 0.712, 2: 0.714})
    assert trained.mean == pytest.approx(0.712)
    assert trained.standard_error == pytest.approx(0.002 / math.sqrt(3))
    assert trained.bytes_total == 9_000_001
    assert [row.epsilon for row in rows[:6]] == [0.0, 1.0, None, None, 1.0, 1.0]
    assert [row.bytes_total is None for row in rows[:6]] == [False, False, False, True, False, False]
    assert table.header(rows)[3] == "AUC"
    words = [table.cells(row) for row in rows]
    assert {len(cells) for cells in words} == {len(table.header(rows))}
    assert words[1] == ["1", "trained", "1", "0.7120 ± 0.0012", "9.0", "no"]
    assert words[2][1:3] == ["trained without noise", "none"]
    assert words[3][1:] == ["backpropagation", "none", "0.7510 ± 0.0006", "-", "no"]
    assert words[4][1] == "weather alone, trained"
    (one,) = table.rows(RUNS[:1])
    assert one.standard_error is None
    assert table.cells(one)[3] == "0.5600"


def test_the_sentences_say_what_training_bought_and_what_it_cost() -> None:
    notes = table.notes(table.rows(RUNS), 3)
    # differences by seed: 0.15, 0.151, 0.152 to untrained devices, and 0.1, 0.101, 0.102 to the best party
    assert (
        "Width 1: training at epsilon 1 is 0.1510 above untrained devices (261.5 standard errors), "
        "and 0.1010 above the best party alone, weather (174.9 standard errors)."
    ) in notes
    (uploads,) = [note for note in notes if note.startswith("One upload")]
    assert uploads == (
        "One upload of untrained embeddings of width 4 costs 2.0 MB (0.5910); training at epsilon 1 costs "
        "9.0 MB at width 1 (0.7120), 36.0 MB at width 4 (0.7420)."
    )
    assert any(note.startswith("± is the standard error over 3 seeds") for note in notes)
    assert any("No privacy, backpropagation: a ceiling, never a recipe." in note for note in notes)
    assert (
        notes[-1] == "No guarantee for trained; weather alone, trained; registry alone, trained: the noise is seeded."
    )
    short = table.notes(table.rows(RUNS[:5]), 3)
    assert "trained, width 1: 2 of 3 seeds finished." in short
    worse = [measured(UNTRAINED, 1, 1.0, 0, 0.7), measured(TRAINED, 1, 1.0, 0, 0.6)]
    assert "Width 1: training at epsilon 1 is 0.1000 below untrained devices." in table.notes(table.rows(worse), 1)


def test_the_figure_has_a_line_for_each_kind_and_the_best_and_worst_party(tmp_path: Path) -> None:
    table.draw(table.rows(RUNS), "flights, exact accounting", tmp_path / "figure.svg")
    words = texts(tmp_path / "figure.svg")
    assert {"untrained", "trained, epsilon 1", "flights, exact accounting", "test AUC"} <= set(words)
    middle = [measured(ALONE, 1, 1.0, 0, 0.56, "schedule")]
    labels = [label for label, _, _ in table.lines(table.rows([*RUNS, *middle]))]
    assert labels[1:4] == ["trained, no noise", "trained, epsilon 1", "untrained"]
    assert "weather" in labels[4]
    assert "registry" in labels[5]
    assert len(labels) == 6
