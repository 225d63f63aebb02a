"""`fig-widths`: what training the devices buys at each width of their embeddings."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import Panel, by_row, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A curve over the widths for each row: the accuracy of the refitted head."""
    panels = []
    for workload in runs.places:
        lines = runs.of(workload)
        curves = by_row(lines, lambda line: line.cell.case.x or 0.0, lambda run: run.refitted)
        ticks = {width: f"{width:g}" for width in sorted({line.cell.case.x or 0.0 for line in lines})}
        label = "numbers that a device sends for a record"
        panels.append(Panel(runs.title(workload), label, "test accuracy, refitted, %", curves, True, False, ticks))
    notes = ["Settings were chosen at width 4; the figure shows the mean of all seeds."]
    return ItemTold(*standard(runs), notes, draw(panels, figure))
