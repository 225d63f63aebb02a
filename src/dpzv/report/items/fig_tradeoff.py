"""`fig-tradeoff`: test accuracy against the budget."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import COLOURS, Curve, Panel, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, budget_text, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload; budgets stand side by side, the largest and none at all on the right."""
    panels = []
    for workload in runs.places:
        lines = runs.of(workload)
        budgets = sorted({line.cell.epsilon for line in lines})
        ticks = {float(place): budget_text(epsilon) for place, epsilon in enumerate(budgets)}
        curves = []
        for row in dict.fromkeys(line.cell.row for line in lines):
            own = sorted((line for line in lines if line.cell.row == row), key=lambda line: line.cell.epsilon)
            x = [float(budgets.index(line.cell.epsilon)) for line in own]
            y = [100 * (line.mean(lambda run: run.in_loop) or 0.0) for line in own]
            curves.append(Curve(own[0].label, x, y, COLOURS.get(row, ""), marker="o"))
        panels.append(
            Panel(runs.title(workload), "epsilon, as asked for", "test accuracy in the loop, %", curves, ticks=ticks)
        )
    notes = ["At the paper's accounting an epsilon is what the published rule calls so; fig-honest has the true one."]
    return ItemTold(*standard(runs), notes, draw(panels, figure))
