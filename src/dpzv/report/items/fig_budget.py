"""`fig-budget`: the accuracy that each method has reached when a fixed number of bytes is sent."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import COLOURS, Curve, Panel, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, Shown, budget_text, percent

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """The last evaluation of every run within the budget of bytes."""
    most = float(runs.item.options["megabytes"]) * 1e6
    header = ["workload", "row", "epsilon", f"in loop within {most / 1e6:g} MB, %", "state"]
    rows, panels = [], []
    for line in runs.lines:
        figures = line.text(lambda run: _within(run, most), percent)
        what = [runs.title(line.cell.workload), line.label, budget_text(line.cell.epsilon)]
        rows.append([*what, figures, line.status or "-"])
    for workload in runs.places:
        lines = runs.of(workload)
        budgets = sorted({line.cell.epsilon for line in lines}, reverse=True)
        ticks = {float(place): budget_text(epsilon) for place, epsilon in enumerate(budgets)}
        curves = []
        for row in dict.fromkeys(line.cell.row for line in lines):
            own = sorted((line for line in lines if line.cell.row == row), key=lambda line: -line.cell.epsilon)
            y = [100 * (line.mean(lambda run: _within(run, most)) or 0.0) for line in own]
            x = [float(budgets.index(line.cell.epsilon)) for line in own]
            curves.append(Curve(own[0].label, x, y, COLOURS.get(row, ""), marker="o"))
        title = f"{runs.title(workload)}, {most / 1e6:g} MB"
        panels.append(Panel(title, "epsilon, as asked for", "test accuracy in the loop, %", curves, ticks=ticks))
    return ItemTold(header, rows, ["The paper does not print its number of bytes."], draw(panels, figure))


def _within(run: Shown, most: float) -> float:
    """The accuracy of the last evaluation before `most` bytes were sent; that of the first one if none was."""
    inside = [line for line in run.metrics if line["bytes_up"] + line["bytes_down"] <= most]
    return float((inside or run.metrics[:1])[-1]["test_accuracy"])
