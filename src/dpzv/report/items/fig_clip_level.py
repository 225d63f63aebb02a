"""`fig-clip-level`: test accuracy against rounds at several clips, at one budget."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import CYCLE, Panel, accuracy, against, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload, a curve for each clip."""
    panels = []
    for workload in runs.places:
        curves = [
            against(line, lambda m: m["round"], accuracy, label=line.cell.case.name, colour=CYCLE[i])
            for i, line in enumerate(runs.of(workload))
        ]
        panels.append(Panel(runs.title(workload), "rounds", "test accuracy in the loop, %", curves))
    note = "Differences are divided by 2 lambda here; the paper's C is half of ours if it divides by lambda."
    return ItemTold(*standard(runs), [note], draw(panels, figure))
