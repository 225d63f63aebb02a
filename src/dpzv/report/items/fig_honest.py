"""`fig-honest`: the paper's epsilon beside the one that holds, and accuracy against the true epsilon."""

from __future__ import annotations

from pathlib import Path

from dpzv.privacy.gdp import epsilon_of, mu_of, true_mu_of_paper
from dpzv.report.figure_file import COLOURS
from dpzv.report.panels import Curve, Panel, draw, level
from dpzv.report.reproduced import ItemRuns, ItemTold, Line, standard
from dpzv.runtime.run_plan import batch_of

__all__ = ["told", "true_epsilon"]

PRINTED = (0.1, 0.5, 1.0, 5.0, 10.0)
"""The budgets that the paper prints."""

RECORDS, GREYS = 60_000, ("#a0a0a0", "#707070", "#404040")
"""The records of the panel on the left, MNIST's, and the colours of its batches."""


def true_epsilon(epsilon: float, delta_dp: float, B: int, D: int) -> float:
    """What the paper's epsilon is at least against devices, who know the batches; its un-noised head is left out."""
    return epsilon_of(true_mu_of_paper(mu_of(epsilon, delta_dp), B, D), delta_dp)


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """On the left the two epsilons for published sizes, on the right accuracy against the true one."""
    options = runs.item.options
    delta_dp = float(options["delta_dp"])
    panels = [_two_epsilons(options["batches"], delta_dp)]
    panels += [_accuracy(runs.title(workload), runs.of(workload)) for workload in runs.places]
    header, rows = standard(runs)
    notes = [_printed(name, int(D), options["batches"], delta_dp) for name, D in options["records"].items()]
    notes.append(
        "The paper prints no batch, so these are assumed; 180,000 reviews follow from the bytes of its Table 1. What "
        "its head gives away is left out: the head learns from labels without noise, so no bound holds at all."
    )
    notes.append(
        "Points of the paper's rule stand at the least epsilon that can be true, at the delta of the exact account; "
        "they are no alternative to it. Untrained devices are shown with the refitted head, which never leaves the "
        "server, at epsilon 0; the strong simple model has the joined records and no privacy."
    )
    return ItemTold(header, rows, notes, draw(panels, figure))


def _two_epsilons(batches: list[int], delta_dp: float) -> Panel:
    """The paper's epsilon against the one that holds."""
    curves = []
    for B, grey in zip(batches, GREYS, strict=False):
        held = [true_epsilon(epsilon, delta_dp, B, RECORDS) for epsilon in PRINTED]
        curves.append(Curve(f"batch {B}", list(PRINTED), held, grey, marker="o"))
    curves.append(Curve("as printed", list(PRINTED), list(PRINTED), "#222222", 1))
    title = f"{RECORDS:,} records, delta {delta_dp:g}"
    return Panel(title, "epsilon of the paper", "epsilon that holds, at least", curves, True, True)


def _accuracy(title: str, lines: list[Line]) -> Panel:
    """Accuracy against the true epsilon, at the delta of the exact account."""
    delta_dp = min(line.cell.job.config.privacy.delta_dp for line in lines)
    curves = []
    free = {"untrained": lambda run: run.refitted, "plain": lambda run: run.in_loop}  # of no budget, or without privacy
    for row, accounting in dict.fromkeys((line.cell.row, line.cell.accounting) for line in lines):
        if row in free:
            continue
        own = [line for line in lines if (line.cell.row, line.cell.accounting) == (row, accounting)]
        points = sorted((_budget(line, delta_dp), 100 * (line.mean(lambda run: run.in_loop) or 0.0)) for line in own)
        marker, label = "o", own[0].label
        if accounting == "paper":
            marker, label = ">", f"{label}, paper's rule: at least, no bound holds"
        x, y = ([point[i] for point in points] for i in (0, 1))
        curves.append(Curve(label, x, y, COLOURS.get(row, ""), int(accounting == "paper"), marker=marker))
    levels = {line.cell.row: line for line in lines if line.cell.row in free}
    curves += [level(line, curves, free[row]) for row, line in levels.items()]
    return Panel(title, f"true epsilon, delta {delta_dp:g}", "test accuracy, %", curves, log_x=True)


def _budget(line: Line, delta_dp: float) -> float:
    """The epsilon that holds: the claim of the exact account, or what the published rule is at least."""
    config = line.cell.job.config
    if line.cell.accounting == "exact":
        return line.cell.epsilon
    D = line.finished[0].known["data"]["records"]
    mu = mu_of(line.cell.epsilon, config.privacy.delta_dp)
    return epsilon_of(true_mu_of_paper(mu, batch_of(config, D), D), delta_dp)


def _printed(name: str, D: int, batches: list[int], delta_dp: float) -> str:
    """One published setting in words."""
    parts = []
    for epsilon in PRINTED:
        held = ", ".join(f"{true_epsilon(epsilon, delta_dp, B, D):.3g} (B = {B})" for B in batches)
        parts.append(f"{epsilon:g} is at least {held}")
    return f"{name}, {D:,} records, delta {delta_dp:g}: the paper's epsilon " + "; ".join(parts) + "."
