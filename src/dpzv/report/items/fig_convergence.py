"""`fig-convergence`: test accuracy against rounds."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import Panel, accuracy, against, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, budget_text, standard

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload and budget, a curve for each row."""
    panels = []
    for workload in runs.places:
        lines = runs.of(workload)
        for epsilon in dict.fromkeys(line.cell.epsilon for line in lines):
            curves = [against(line, lambda m: m["round"], accuracy) for line in lines if line.cell.epsilon == epsilon]
            title = f"{runs.title(workload)}, epsilon {budget_text(epsilon)}"
            panels.append(Panel(title, "rounds", "test accuracy in the loop, %", curves))
    notes = ["Accuracy is that of the head in the loop on test records; bands are one standard deviation over seeds."]
    return ItemTold(*standard(runs), notes, draw(panels, figure))
