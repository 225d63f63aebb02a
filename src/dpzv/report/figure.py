"""The figure of a comparison: test accuracy against megabytes sent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpzv.metrics import headline
from dpzv.report.comparison_table import UNTRAINED, Record, groups
from dpzv.report.figure_file import STYLES, axes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

COLOURS = {"dpzv": "#0072b2", "vafl": "#d55e00", "vfl-czofo": "#009e73", "zoo-vfl": "#cc79a7"}
"""Okabe and Ito's palette, which colour-blind readers can tell apart too."""

GREY = "#555555"


def draw(records: Sequence[Record], target: float | None, title: str, path: Path) -> None:
    """Write the figure as SVG: a line and a band of one standard deviation for each method and epsilon.

    Lines are the head in the loop, dots the refitted head at the end, the dashed line the refitted head over
    untrained devices. The axis shows where the lines spend their second halves; a climb may begin below it.
    """
    metric, _ = headline(records[0].summary)
    scale = 100.0 if metric == "accuracy" else 1.0
    heights: list[float] = []
    with axes_of(title, path) as axes:
        grouped = groups(records)
        epsilons = list(dict.fromkeys(epsilon for method, epsilon in grouped if method != UNTRAINED))
        for (method, epsilon), group in grouped.items():
            if method != UNTRAINED:
                words = "no privacy" if epsilon is None else f"epsilon {epsilon:g}"
                label = method if len(epsilons) == 1 else f"{method}, {words}"
                heights += _line(axes, group, scale, COLOURS.get(method, GREY), epsilons.index(epsilon), label)
        axes.plot([], [], "o", color=GREY, markersize=5, label="refitted head, at the end")
        frozen = [headline(record.summary)[1] for record in records if record.method == UNTRAINED]
        if frozen:
            heights.append(scale * statistics.fmean(frozen))
            axes.axhline(heights[-1], color=GREY, linewidth=1.2, dashes=(6, 3), label="untrained devices, refitted")
        if target is not None and metric == "accuracy":
            heights.append(scale * target)
            axes.axhline(heights[-1], color="black", linewidth=0.6, label=f"target, {scale * target:g} %", zorder=1)
        _label(axes, metric, heights)


def _label(axes: Axes, metric: str, heights: list[float]) -> None:
    """Name the axes, and let the vertical one show `heights` with a margin."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlabel("megabytes sent, first fill included")
    named = {"accuracy": "test accuracy in the loop, %", "auc": "test AUC in the loop", "r2": "test R^2 in the loop"}
    axes.set_ylabel(named.get(metric, metric))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    shown = [height for height in heights if math.isfinite(height)]
    if shown:
        margin = 0.06 * (max(shown) - min(shown)) or 0.01 * abs(shown[0]) or 0.01
        axes.set_ylim(min(shown) - margin, max(shown) + margin)


def _line(axes: Axes, group: list[Record], scale: float, colour: str, place: int, label: str) -> list[float]:
    """Mean and band over the seeds, at the rounds that all of them evaluated, and the refitted head's dot.

    The heights that must be seen are returned: those of the line's second half, its band included, and of the dot.
    """
    by_round: dict[int, list[tuple[float, float]]] = {}
    for record in group:
        for line in record.metrics:
            sent = (line["bytes_up"] + line["bytes_down"]) / 1e6
            by_round.setdefault(line["round"], []).append((sent, scale * headline(line)[1]))
    points = [pairs for pairs in by_round.values() if len(pairs) == len(group) and min(pairs)[0] > 0]
    x = [statistics.fmean(sent for sent, _ in pairs) for pairs in points]
    y = [statistics.fmean(value for _, value in pairs) for pairs in points]
    style = STYLES[place % len(STYLES)]
    axes.plot(x, y, color=colour, linestyle=style, linewidth=1.6, label=label, zorder=3)
    low = high = y
    if len(group) > 1:
        deviation = [statistics.stdev(value for _, value in pairs) for pairs in points]
        low, high = ([mean + sign * d for mean, d in zip(y, deviation, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0, zorder=2)
    end = statistics.fmean((r.summary["bytes_up"] + r.summary["bytes_down"]) / 1e6 for r in group)
    refitted = scale * statistics.fmean(headline(record.summary)[1] for record in group)
    inside = "white" if place % 2 else colour
    axes.plot([end], [refitted], "o", color=colour, markerfacecolor=inside, markersize=5, zorder=4)
    return [*low[len(y) // 2 :], *high[len(y) // 2 :], refitted]
