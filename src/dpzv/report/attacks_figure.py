"""The figure of attacks: scores with their intervals, beside floors and ceilings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpzv.report.figure_file import save, subplots

__all__ = ["KINDS", "draw_attacks", "draw_leakage", "kind_of"]

COLOURS = {"labels": "#0072b2", "features": "#d55e00"}
GREY = "#555555"

KINDS = ("no noise", "published, 10", "published, 1", "true epsilon 10", "true epsilon 1")
"""Kinds of noise of a grid of runs, from none to the most."""

LINES = {
    "direction": "#d55e00",
    "norm": "#cc79a7",
    "likelihood ratio": "#0072b2",
    "batch least squares": "#009e73",
    "sign": "#e69f00",
    "model completion, 10 a class": GREY,
}
"""The attacks on labels that the figure of a grid shows."""


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


def kind_of(row: Mapping[str, Any]) -> str:
    """Which of `KINDS` the noise of an attacked run is."""
    asked = row["run"]["asked_epsilon"]
    if asked is None:
        return KINDS[0]
    return f"{'published,' if row['epsilon'] is None else 'true epsilon'} {asked:g}"


def draw_leakage(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the figure of a grid: what attacks on labels reach above their floor, by method and kind of noise.

    A dot is the mean over the seeds with the least and the largest, a black bar the most that a claim allows.
    """
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, grid = subplots(1, len(methods), size=(2.9 * len(methods), 3.9), sharey=True, squeeze=False)
    panels = grid[0]
    for axes, method in zip(panels, methods, strict=True):
        for shift, (attack, colour) in enumerate(LINES.items()):
            for place, kind in enumerate(KINDS):
                found = [one for one in rows if (one["method"], one["attack"], kind_of(one)) == (method, attack, kind)]
                if found:
                    above, at = [one["score"] - one["floor"] for one in found], place + 0.11 * (shift - 2.5)
                    axes.plot([at, at], [min(above), max(above)], color=colour, linewidth=1.2)
                    axes.plot([at], [sum(above) / len(above)], "o", color=colour, markersize=4, label=attack)
                    limit = min(one["ceiling"] - one["floor"] for one in found)
                    if "true" in kind:
                        axes.plot([at], [limit], "_", color="black", markersize=7)
        axes.axhline(0.0, color="black", linewidth=0.6)
        axes.set_xticks(range(len(KINDS)), KINDS, rotation=40, ha="right", fontsize=8)
        axes.set_title(method, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("area under the curve above the floor")
    shown = {label: dot for axes in panels for dot, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    save(figure, path)


def _label(row: Mapping[str, Any]) -> str:
    run = row["run"]
    asked = "no noise" if run["asked_epsilon"] is None else f"epsilon {run['asked_epsilon']:g}, {run['noise']}"
    return f"{run['data']}, {row['method']}, {asked}: {row['attack']}"
