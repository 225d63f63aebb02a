"""`fig-clip-level`: test accuracy against rounds at several clips, at one budget."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.items.fig_clipping import OF_DEVICES
from dpzv.report.panels import accuracy, by_case, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload and row, a curve for each clip."""
    panels = by_case(runs, "test accuracy in the loop, %", accuracy)
    note = "Differences are divided by 2 lambda here; if the paper divides by lambda, its C is twice ours."
    return ItemTold(*standard(runs), [note, OF_DEVICES], draw(panels, figure))
