"""`fig-tradeoff`: test accuracy against the budget."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import draw, over_budgets
from dpzv.report.reproduced import ItemRuns, ItemTold, standard

__all__ = ["UNCLIPPED", "told"]

UNCLIPPED = (
    "Without noise rivals' embeddings are not clipped either, while DPZV's differences are: at `none` a rival has "
    "other inputs than those its steps were chosen for, and may diverge by them."
)
"""What to mind where rivals stand beside DPZV without a budget."""


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A panel for each workload; budgets stand side by side, the largest and none at all on the right."""
    panels = [
        over_budgets(runs.title(workload), runs.of(workload), lambda run: run.in_loop) for workload in runs.places
    ]
    notes = [
        "At the paper's accounting an epsilon is what the published rule calls so; fig-honest has the true one.",
        "Frozen devices take nothing from the noise, so one run stands for all budgets.",
        "Settings were chosen at one budget (see tuning); at the others a method may do better with its own.",
        "A rival's run whose length trials chose is longer at a larger budget, as long as the published noise on its "
        "embeddings stays what it was in the trials. Its steps are those of the short run, and some are too large for "
        "so many rounds. So the run that is as long as its trials stands beside it, on MNIST and CIFAR-10.",
        UNCLIPPED,
    ]
    return ItemTold(*standard(runs), notes, draw(panels, figure))
