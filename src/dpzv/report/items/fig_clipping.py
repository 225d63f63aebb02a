"""`fig-clipping`: test loss against rounds with and without the clip, without privacy."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import CYCLE, Panel, against, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload, a curve for each case."""
    panels = []
    for workload in runs.places:
        curves = [
            against(line, lambda m: m["round"], lambda m: m["test_loss"], label=line.cell.case.name, colour=CYCLE[i])
            for i, line in enumerate(runs.of(workload))
        ]
        panels.append(Panel(runs.title(workload), "rounds", "test loss in the loop", curves))
    return ItemTold(*standard(runs), ["Without privacy, so that only the clip differs."], draw(panels, figure))
