"""`fig-clipping`: test loss against rounds with and without the clip, without privacy."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import by_case, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload and row, a curve for each case."""
    panels = by_case(runs, "test loss in the loop", lambda line: line["test_loss"])
    return ItemTold(*standard(runs), ["Without privacy, so that only the clip differs."], draw(panels, figure))
