"""`fig-clipping`: test loss against rounds with and without the clip, without privacy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpzv.report.panels import MANY_TIMES, Panel, by_case, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["OF_DEVICES", "told"]

OF_DEVICES = (
    "The clip acts on what devices get, not on the steps of these heads. With the small step that MNIST's trials chose "
    "beside the first-order head devices hardly move, so it cannot matter there. One seed: tenths of a point are noise."
)
"""What to mind where clips are compared."""


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload and row, a curve for each case."""
    panels = [_seen(panel) for panel in by_case(runs, "test loss in the loop", lambda line: line["test_loss"])]
    notes = [
        "Without privacy, so that only the clip differs. Steps were chosen by trials with a clip: where the loss runs "
        "away without one, which has a logarithmic axis, smaller steps might not.",
        OF_DEVICES,
    ]
    return ItemTold(*standard(runs), notes, draw(panels, figure))


def _seen(panel: Panel) -> Panel:
    """The panel, with a logarithmic axis if one curve ends so far above another that neither would show its shape."""
    ends = [curve.y[-1] for curve in panel.curves if curve.y]
    return replace(panel, log_y=bool(ends) and max(ends) > MANY_TIMES * min(ends))
