"""The figure of what training buys: the test metric against the numbers that a device sends for a record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpzv.report.figure_file import STYLES, axes_of
from dpzv.report.widths_table import ALONE, BACKPROPAGATION, TRAINED, UNTRAINED, WidthRow

__all__ = ["draw", "lines"]

BLUE, GREEN, ORANGE, PINK, GREY = "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#777777"
"""Okabe and Ito's palette, which colour-blind readers can tell apart too."""


def draw(table: Sequence[WidthRow], title: str, path: Path) -> None:
    """Write the figure as SVG: a line over the widths for each kind of row, with bars of one standard error.

    Of the parties alone only the best and the worst are drawn, by their mean over the widths.
    """
    metric = table[0].metric
    scale = 100.0 if metric == "accuracy" else 1.0
    with axes_of(title, path) as axes:
        from matplotlib.ticker import FixedLocator, NullLocator  # slow to import

        for label, line, look in lines(table):
            x = [row.width for row in line]
            y = [scale * row.mean for row in line]
            bars = [scale * (row.standard_error or 0.0) for row in line]
            axes.errorbar(x, y, yerr=bars, label=label, capsize=2.5, elinewidth=1, markersize=5, linewidth=1.6, **look)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted({row.width for row in table})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("numbers that a device sends for a record")
        named = {"accuracy": "test accuracy, %", "auc": "test AUC", "r2": "test R^2"}
        axes.set_ylabel(named.get(metric, f"test {metric}"))


def lines(table: Sequence[WidthRow]) -> list[tuple[str, list[WidthRow], dict[str, Any]]]:
    """The lines from the ceiling down: what each is called, its rows, and how it looks."""
    ceiling: dict[str, Any] = {"color": "black", "linestyle": (0, (6, 3)), "marker": "s"}
    made = [("no privacy,\nbackpropagation", [r for r in table if r.kind == BACKPROPAGATION], ceiling)]
    trained = [row for row in table if row.kind == TRAINED]
    free = [row for row in trained if row.epsilon is None]
    made.append(("trained, no noise", free, {"color": GREEN, "linestyle": "-", "marker": "^"}))
    for i, epsilon in enumerate(sorted({row.epsilon for row in trained if row.epsilon is not None}, reverse=True)):
        look: dict[str, Any] = {"color": BLUE, "linestyle": STYLES[i % len(STYLES)], "marker": "o"}
        made.append((f"trained, epsilon {epsilon:g}", [row for row in trained if row.epsilon == epsilon], look))
    untrained = [row for row in table if row.kind == UNTRAINED]
    made.append(("untrained", untrained, {"color": GREY, "linestyle": "-", "marker": "D"}))
    alone = [row for row in table if row.kind == ALONE]
    means = {party: statistics.fmean(r.mean for r in alone if r.party == party) for party in {r.party for r in alone}}
    if len(means) > 1:
        order = sorted(means, key=lambda party: means[party], reverse=alone[0].metric != "loss")
        for word, party, colour, marker in (("best", order[0], ORANGE, "v"), ("worst", order[-1], PINK, "x")):
            look = {"color": colour, "linestyle": (0, (1.2, 1.2)), "marker": marker}
            spent = "" if alone[0].epsilon is None else f", epsilon {alone[0].epsilon:g}"
            label = f"{word} party alone\n({party}{spent})"
            made.append((label, [row for row in alone if row.party == party], look))
    return [line for line in made if line[1]]
