"""Figures of several panels side by side, as SVG and PNG, whose axes use their space."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpzv.report.figure_file import COLOURS, STYLES, legend, over_runs, plain_ticks, save, subplots
from dpzv.report.reproduced import ItemRuns, Line, Shown, budget_text

__all__ = [
    "CYCLE",
    "DASHED",
    "MANY_TIMES",
    "Curve",
    "Panel",
    "accuracy",
    "against",
    "by_case",
    "by_row",
    "draw",
    "level",
]
__all__ += ["over_budgets", "window"]

CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#222222")
"""Colours of curves that are not rows, in this order."""

DASHED = {"backpropagation": 1, "frozen": 1, "frozen-zo": 1, "plain": 2}
"""Line styles of rows that would hide others, or share a colour with them."""

LONG = 10
"""Points from which on a curve is long."""

MOST_WIDE = 3
"""The most panels side by side."""

MANY_TIMES = 500
"""An axis that ends at this many times its beginning: a plain one hides curves, a logarithmic one has few marks."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points that are joined by a line; `band` is a deviation at each of them."""

    label: str
    x: list[float]
    y: list[float]
    colour: str = ""
    style: int = 0
    band: list[float] = field(default_factory=list)
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes; `ticks` name places on the x axis."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = False
    log_y: bool = False
    ticks: dict[float, str] = field(default_factory=dict)


def draw(panels: Sequence[Panel], path: Path) -> bool:
    """Write `path` as SVG and PNG; false, and nothing, if no panel has a point."""
    shown = [panel for panel in panels if any(curve.x for curve in panel.curves)]
    if not shown:
        return False
    high = math.ceil(len(shown) / MOST_WIDE)
    wide = math.ceil(len(shown) / high)  # four panels are two rows of two
    figure, grid = subplots(high, wide, size=(5.2 * wide, 4.2 * high), squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    named: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, shown, strict=False):
        for number, curve in enumerate(panel.curves):
            if curve.x:
                drawn = _curve(axes, curve, curve.colour or CYCLE[number % len(CYCLE)])
                named.setdefault(curve.label, drawn)
        _axes(axes, panel)
    legend(figure, named)
    save(figure, path.with_suffix(".svg"), path.with_suffix(".png"))
    return True


def accuracy(line: dict[str, Any]) -> float | None:
    """The test accuracy of a line of metrics in per cent, if it has one."""
    share = line["test_accuracy"]
    return None if share is None else 100 * share


def by_row(lines: Sequence[Line], x: Callable[[Line], float], y: Callable[[Shown], float]) -> list[Curve]:
    """A curve for each row, and for each case that is no place on an axis: means of shares `y` in per cent."""
    curves = []
    for name in dict.fromkeys(line.named for line in lines):
        own = sorted((line for line in lines if line.named == name), key=x)
        row, shares = own[0].cell.row, [100 * (line.mean(y) or 0.0) for line in own]
        marker = "" if row == "plain" and len(own) > 1 else "o"  # one level for all budgets
        style = DASHED.get(row, int(name != own[0].label))
        curves.append(Curve(name, list(map(x, own)), shares, COLOURS.get(row, ""), style, [], marker))
    return curves


def by_case(runs: ItemRuns, y_label: str, y: Callable[[dict[str, Any]], float | None]) -> list[Panel]:
    """A panel for each workload and row, in which every case is a curve of `y` against rounds."""
    panels = []
    for workload in runs.places:
        lines = runs.of(workload)
        for row in dict.fromkeys(line.cell.row for line in lines):
            own = [line for line in lines if line.cell.row == row]
            curves = [
                against(line, lambda m: m["round"], y, label=line.cell.case.name, colour=CYCLE[i])
                for i, line in enumerate(own)
            ]
            panels.append(Panel(f"{runs.title(workload)}: {own[0].label}", "rounds", y_label, curves))
    return panels


def against(
    line: Line, x: Callable[[dict[str, Any]], float], y: Callable[[dict[str, Any]], float | None], **look: Any
) -> Curve:
    """A curve over the lines of metrics that all finished runs of `line` have: means, and the deviation over seeds."""
    xs, ys, band = over_runs(
        [
            [(found["round"], x(found), v) for found in run.metrics if (v := y(found)) is not None and math.isfinite(v)]
            for run in line.finished
        ]
    )
    colour = look.pop("colour", COLOURS.get(line.cell.row, ""))
    return Curve(look.pop("label", line.label), xs, ys, colour, look.pop("style", 0), band)


def level(line: Line, curves: Sequence[Curve], y: Callable[[Shown], float] = lambda run: run.in_loop) -> Curve:
    """What has no rounds and no budget as a line over the whole width of `curves`: the mean share `y` in per cent."""
    places = [x for curve in curves for x in curve.x]
    share, row = line.mean(y), line.cell.row
    x = [min(places), max(places)] if places and share is not None else []
    return Curve(line.label, x, [100 * (share or 0.0)] * len(x), COLOURS.get(row, ""), DASHED.get(row, 2))


def over_budgets(title: str, lines: Sequence[Line], y: Callable[[Shown], float], *, falling: bool = False) -> Panel:
    """The accuracy `y` of each row against its budget; budgets stand side by side, from the least on or `falling`."""
    budgets = sorted({line.cell.epsilon for line in lines}, reverse=falling)
    ticks = {float(place): budget_text(epsilon) for place, epsilon in enumerate(budgets)}
    curves = by_row(lines, lambda line: float(budgets.index(line.cell.epsilon)), y)
    return Panel(title, "epsilon, as asked for", "test accuracy in the loop, %", curves, ticks=ticks)


def _curve(axes: Any, curve: Curve, colour: str) -> Any:
    look: dict[str, Any] = {"color": colour, "linestyle": STYLES[curve.style % len(STYLES)], "linewidth": 1.6}
    if curve.marker or len(curve.x) < 2:
        look |= {"marker": curve.marker or "o", "markersize": 4.5}
    (drawn,) = axes.plot(curve.x, curve.y, **look)
    if curve.band:
        low, high = ([y + sign * d for y, d in zip(curve.y, curve.band, strict=True)] for sign in (-1, 1))
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
    return drawn


def _axes(axes: Any, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    if panel.ticks:
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
        axes.minorticks_off()
    elif panel.log_x:
        from matplotlib.ticker import LogLocator

        low, high = axes.get_xlim()
        plain_ticks(axes, LogLocator(subs=(1, 2, 5) if high < MANY_TIMES * low else (1, 3)))
    axes.margins(x=0.02, y=0.05)
    if not panel.log_y:
        axes.set_ylim(*window(panel.curves))


def window(curves: Sequence[Curve]) -> tuple[float, float]:
    """The part of the y axis that is worth showing; the first tenth of a long curve, a steep start, may lie outside."""
    values = [y for curve in curves for y in (curve.y if len(curve.y) < LONG else curve.y[len(curve.y) // 10 + 1 :])]
    finite = [value for value in values if math.isfinite(value)] or [0.0]  # outputs may have become no numbers
    low, high = min(finite), max(finite)
    room = 0.05 * (high - low) or max(0.5, 0.05 * abs(high))
    return low - room, high + room
