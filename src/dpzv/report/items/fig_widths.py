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
    notes = [
        "The settings are those of recipe mnist-cnn, which were chosen at width 4: 32 directions, batches of 4,096, 8 "
        "bits, and records protected, not labels alone. So figures are not those of fig-honest.",
        "Figures are means over seeds; backpropagation has one seed.",
    ]
    return ItemTold(*standard(runs), notes, draw(panels, figure))
