"""`fig-memory`: peak memory of a device's round over the model's size, as in the paper, and over one inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpzv.report.figure_file import COLOURS, legend, save, subplots
from dpzv.report.reproduced import ItemRuns, ItemTold

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """A pair of bars for each network and method."""
    header = ["network", "machine", "method", "MiB", "over the model", "over inference"]
    rows = []
    for line in runs.lines:
        if not line.finished:
            rows.append([runs.title(line.cell.workload), "-", "-", line.status, "-", "-"])
            continue
        found = line.finished[0].known
        for action, peak in found["peaks"].items():
            over = [
                f"{peak / 2**20:.1f}",
                f"{peak / found['weights']:.2f}",
                f"{peak / found['peaks']['inference']:.2f}",
            ]
            rows.append([found["network"], found["accelerator"], _title(action), *over])
    done = [line.finished[0].known for line in runs.lines if line.finished]
    if done:
        _bars(done, figure)
    return ItemTold(header, rows, ["All parameters are trained, without momentum, at the recipe's batch."], bool(done))


def _title(action: str) -> str:
    return "one inference" if action == "inference" else action.upper()


def _bars(found: list[dict[str, Any]], path: Path) -> None:
    figure, grid = subplots(1, 2, size=(11, 4.4))
    named: dict[str, Any] = {}
    for axes, by in zip(grid, ("weights", "inference"), strict=True):
        for group, one in enumerate(found):
            for place, (action, peak) in enumerate(one["peaks"].items()):
                base = one["weights"] if by == "weights" else one["peaks"]["inference"]
                bar = axes.bar(
                    group + 0.17 * (place - 2), peak / base, color=COLOURS.get(action, "#bbbbbb"), width=0.16
                )
                axes.bar_label(bar, fmt="%.2f", fontsize=7)
                named[_title(action)] = bar
        axes.margins(y=0.08)
        axes.axhline(1.0, color="black", linewidth=0.6)
        line = "the model\nitself" if by == "weights" else "one\ninference"
        axes.text(1.01, 1.0, line, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        axes.set_xticks(range(len(found)), [one["network"].replace(", ", "\n") for one in found])
        axes.set_ylabel("peak over the model's size" if by == "weights" else "peak over one inference")
        axes.spines[["top", "right"]].set_visible(False)
    legend(figure, named)
    save(figure, path.with_suffix(".svg"), path.with_suffix(".png"))
