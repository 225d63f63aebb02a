"""`table-communication`: megabytes until the target accuracy of each workload, the first fill included."""

from __future__ import annotations

from pathlib import Path

from dpzv.report.panels import DASHED, Curve, Panel, accuracy, against, draw, level
from dpzv.report.reproduced import ItemRuns, ItemTold, percent

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """The table; the figure shows accuracy against megabytes, from which the table is read."""
    header = ["workload", "target, %", "row", "accounting", "epsilon", "MB until target", "MB in all", "in loop, %"]
    rows = []
    for line in runs.lines:
        cell, workload = line.cell, runs.workloads[line.cell.workload]
        figures = ["-", "-", line.text(lambda run: run.in_loop, percent)]
        if not cell.job.program:
            figures[:2] = [
                line.text(lambda run: run.until, _megabytes),
                line.text(lambda run: run.megabytes, _megabytes),
            ]
        if not line.finished:
            figures = [line.status, "-", "-"]
        elif line.status:
            figures[0] += f" ({line.status})"
        what = [workload.title, f"{100 * workload.target:g}", line.label, *line.rule]
        rows.append([*what, *figures])
    rows += [[text, *["-"] * 4, "not run: cost", "-", "-"] for text in runs.item.left_out]
    panels, filled = [], []
    for place in runs.places:
        # a run without rounds has one line of metrics, from before its head was fitted
        lines = [line for line in runs.of(place) if line.cell.job.rounds and any(r.metrics for r in line.finished)]
        curves = [
            against(
                line,
                lambda m: (m["bytes_up"] + m["bytes_down"]) / 1e6,
                accuracy,
                # frozen devices would hide trained ones
                style=3 if line.cell.row in DASHED else int(line.cell.accounting == "exact"),
                label=f"{line.label}, {line.cell.accounting}",
            )
            for line in lines
        ]
        curves += [level(line, curves) for line in runs.of(place) if line.cell.row == "plain"]
        if sent := [x for curve in curves for x in curve.x]:
            filled.append(f"{runs.title(place)} {_megabytes(min(sent))}")
            target = [100 * runs.workloads[place].target] * 2
            curves.append(Curve("target", [min(sent), max(sent)], target, "#222222", 3))
        panels.append(Panel(runs.title(place), "megabytes sent", "test accuracy in the loop, %", curves, log_x=True))
    notes = [
        f"The first fill alone, megabytes: {', '.join(filled)}.",
        "The target is looked for with the head in the loop; bytes include the first fill of the table. Where frozen "
        "devices reach it as soon as trained ones, the head has done the work.",
        "The strong simple model has the joined records and no privacy: regression on tf-idf for reviews, kernel "
        "regression on principal components for pixels, boosted trees for flights.",
    ]
    return ItemTold(header, rows, notes, draw(panels, figure))


def _megabytes(value: float) -> str:
    return f"{value:.1f}"
