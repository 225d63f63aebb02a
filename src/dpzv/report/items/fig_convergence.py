"""`fig-convergence`: test accuracy against rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpzv.report.panels import DASHED, Panel, accuracy, against, draw, level
from dpzv.report.reproduced import ItemRuns, ItemTold, budget_text, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload and budget, a curve for each row."""
    panels = []
    for workload in runs.places:
        lines = runs.of(workload)
        for epsilon in dict.fromkeys(line.cell.epsilon for line in lines):
            own = [line for line in lines if line.cell.epsilon == epsilon]
            curves = [
                against(line, lambda m: m["round"], _later, style=DASHED.get(line.cell.row, 0))
                for line in own
                if line.cell.row != "plain"
            ]
            curves += [level(line, curves) for line in own if line.cell.row == "plain"]
            title = f"{runs.title(workload)}, epsilon {budget_text(epsilon)}"
            panels.append(Panel(title, "rounds", "test accuracy in the loop, %", curves, log_x=True))
    notes = [
        "Accuracy is that of the head in the loop on test records; bands are one standard deviation over seeds.",
        "A curve begins at the first evaluation after round 0. Rivals chose some hundred rounds in their trials, since "
        "the published noise on their embeddings grows with the length of a run. Their batches may be smaller, too, so "
        "a round is not the same number of records for all.",
    ]
    return ItemTold(*standard(runs), notes, draw(panels, figure))


def _later(line: dict[str, Any]) -> float | None:
    """The accuracy after at least one round; on this axis round 0 has no place."""
    return accuracy(line) if line["round"] else None
