"""`fig-widths`: what training the devices buys at each width of their embeddings."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import COLOURS, Curve, Panel, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A curve over the widths for each row: the accuracy of the refitted head."""
    panels = []
    for workload in runs.places:
        lines = runs.of(workload)
        widths = sorted({line.cell.case.x or 0.0 for line in lines})
        curves = []
        for row in dict.fromkeys(line.cell.row for line in lines):
            own = sorted((line for line in lines if line.cell.row == row), key=lambda line: line.cell.case.x or 0.0)
            y = [100 * (line.mean(lambda run: run.refitted) or 0.0) for line in own]
            style = int(row == "backpropagation")
            curves.append(
                Curve(own[0].label, [line.cell.case.x or 0.0 for line in own], y, COLOURS[row], style, [], "o")
            )
        ticks = {width: f"{width:g}" for width in widths}
        label = "numbers that a device sends for a record"
        panels.append(Panel(runs.title(workload), label, "test accuracy, refitted, %", curves, True, False, ticks))
    return ItemTold(*standard(runs), ["Settings were chosen at width 4."], draw(panels, figure))
