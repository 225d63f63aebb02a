"""`fig-budget`: the accuracy that each method has reached when a fixed number of bytes is sent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpzv.report.items.fig_tradeoff import UNCLIPPED
from dpzv.report.panels import draw, over_budgets
from dpzv.report.reproduced import ItemRuns, ItemTold, Shown, percent

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """The last evaluation of every run within the budget of bytes."""
    most = float(runs.item.options["megabytes"]) * 1e6
    header = ["workload", "row", "epsilon", f"in loop within {most / 1e6:g} MB, %", "MB sent by then", "state"]
    rows, panels = [], []
    for line in runs.lines:
        figures = line.text(lambda run: _within(run, most), percent)
        sent = line.text(lambda run: _sent(_last(run, most)) / 1e6 if run.metrics else math.nan, "{:.1f}".format)
        what = [runs.title(line.cell.workload), line.named, line.rule[1]]
        rows.append([*what, figures, sent, line.status or "-"])
    rows = [list(row) for row in dict.fromkeys(map(tuple, rows))]  # a simple model is the same for all budgets
    for workload in runs.places:
        title = f"{runs.title(workload)}, {most / 1e6:g} MB"
        panels.append(over_budgets(title, runs.of(workload), lambda run: _within(run, most), falling=True))
    notes = [
        "The paper does not print its number of bytes. Rivals whose trials chose a short run send fewer of them; at a "
        "larger budget they have a longer run, too, whose steps are those of the short one.",
        UNCLIPPED,
    ]
    return ItemTold(header, rows, notes, draw(panels, figure))


def _within(run: Shown, most: float) -> float:
    """The accuracy of the last evaluation before `most` bytes were sent; a simple model sends none."""
    return float(_last(run, most)["test_accuracy"]) if run.metrics else run.in_loop


def _last(run: Shown, most: float) -> dict[str, Any]:
    """The metrics of the last evaluation before `most` bytes were sent; those of the first one if none was."""
    inside = [line for line in run.metrics if _sent(line) <= most]
    return (inside or run.metrics[:1])[-1]


def _sent(line: dict[str, Any]) -> float:
    return float(line["bytes_up"] + line["bytes_down"])
