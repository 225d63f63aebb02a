"""The figure of attacks: scores with their intervals, beside floors and ceilings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpzv.report.figure_file import save, subplots

__all__ = ["draw_attacks"]

COLOURS = {"labels": "#0072b2", "features": "#d55e00"}
GREY = "#555555"


def draw_attacks(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the figure as an SVG or PNG file: a line for each attack on each kind of run, a dot for each run.

    A grey bar is the floor, a black bar the ceiling.
    """
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault(_label(row), []).append(row)
    figure, axes = subplots(size=(9, 1.2 + 0.22 * len(lines)))
    for place, group in enumerate(lines.values()):
        for row in group:
            low, high = row["interval"]
            colour = COLOURS.get(row["target"], GREY)
            axes.plot([low, high], [place, place], color=colour, linewidth=1.4, alpha=0.5, zorder=2)
            axes.plot([row["score"]], [place], "o", color=colour, markersize=4, zorder=3)
            axes.plot([row["floor"]], [place], "|", color=GREY, markersize=9, markeredgewidth=2, zorder=1)
            axes.plot([row["ceiling"]], [place], "|", color="black", markersize=9, zorder=1)
    axes.set_yticks(range(len(lines)), list(lines), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0.4, 1.02)
    axes.set_xlabel("area under the curve; grey bar: without the run, black bar: the most that the claim allows")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _label(row: Mapping[str, Any]) -> str:
    run = row["run"]
    asked = "no noise" if run["asked_epsilon"] is None else f"epsilon {run['asked_epsilon']:g}, {run['noise']}"
    return f"{run['data']}, {row['method']}, {asked}: {row['attack']}"
