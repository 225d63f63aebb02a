"""`fig-theory`: the measured squared gradient norm along a run, beside the rate of Theorem 1."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

from dpzv.report.panels import CYCLE, Curve, Panel, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, budget_text

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """Means over the rounds so far, which is what the theorem bounds, and a line that falls like its rate."""
    header = ["workload", "epsilon", "T", "mean squared norm", "tau, largest", "tau, mean", "d", "exponent", "state"]
    rows, panels = [], []
    for line in runs.lines:
        what = [runs.title(line.cell.workload), budget_text(line.cell.epsilon)]
        if not line.finished:
            rows.append([*what, *["-"] * 6, line.status])
            continue
        found = line.finished[0].known
        x, y = _means(found)
        figures = [str(found["rounds"]), f"{y[-1]:.4g}", f"{found['max_delay']:g}", f"{found['mean_delay']:.1f}"]
        rows.append([*what, *figures, str(found["d"]), f"{_exponent(x, y):.2f}", "-"])
    for workload in runs.places:
        curves = []
        for i, line in enumerate(runs.of(workload)):
            x, y = _means(line.finished[0].known)
            budget = budget_text(line.cell.epsilon)
            curves.append(Curve(f"mean, epsilon {budget}", x, y, CYCLE[i], i))
            norms = [one["squared_norm"] for one in line.finished[0].known["gradient"] if one["round"]]
            curves.append(Curve(f"at T, epsilon {budget}", x, norms, CYCLE[i], 2))
        x, y = _means(runs.of(workload)[0].finished[0].known)
        curves.append(Curve("falls like 1/sqrt(T)", x, [y[0] * math.sqrt(x[0] / t) for t in x], "#222222", 3))
        label = "squared gradient norm: mean up to T, and at T"
        panels.append(Panel(runs.title(workload), "T", label, curves, log_x=True, log_y=True))
    notes = [
        "Theorem 1 bounds the mean over the rounds of the squared norm by terms that fall like sqrt(d/T), as long as "
        "the noise is fixed; its constants (smoothness, Lipschitz) are not known for these networks, so only the rate "
        "is drawn, from the first measured point. An exponent of -0.5 is that rate, a smaller one is faster.",
        "The gradient is that of the head and of all devices together. It is largest at the start, so the mean falls "
        "for long after the norm itself (dotted) has stopped falling. The mean along one run is not quite what the "
        "theorem bounds, since its steps depend on T.",
    ]
    return ItemTold(header, rows, notes, draw(panels, figure))


def _means(summary: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Rounds after the first look, and the mean of the squared norm until then; between two looks it is a line."""
    looks = [(float(one["round"]), one["squared_norm"]) for one in summary["gradient"]]
    sums = itertools.accumulate((t - s) * (a + b) / 2 for (s, a), (t, b) in itertools.pairwise(looks))
    rounds = [t for t, _ in looks[1:]]
    return rounds, [total / t for total, t in zip(sums, rounds, strict=True)]


def _exponent(x: list[float], y: list[float]) -> float:
    """The slope of a straight line through the logarithms."""
    if len(x) < 2:
        return math.nan
    return statistics.linear_regression(list(map(math.log, x)), list(map(math.log, y))).slope
