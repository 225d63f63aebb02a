"""`fig-delay`: one slow device: accuracy against virtual time and against mean delay, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpzv.report.panels import CYCLE, Curve, Panel, accuracy, against, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, Shown, percent

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """Accuracy over time on the left, at the end over the mean delay on the right."""
    header = ["workload", "speeds", "in loop, %", "virtual s", "mean delay, rounds", "largest delay", "state"]
    rows, panels = [], []
    for line in runs.lines:
        figures = [
            line.text(lambda run: run.in_loop, percent),
            *(
                line.text(_of(key), lambda value: f"{value:.1f}")
                for key in ("virtual_seconds", "mean_delay", "max_delay")
            ),
        ]
        rows.append([runs.title(line.cell.workload), line.cell.case.name, *figures, line.status or "-"])
    for workload in runs.places:
        lines = runs.of(workload)
        curves, dots = [], []
        for i, line in enumerate(lines):
            look = {
                "colour": CYCLE[(i + 1) // 2 % len(CYCLE)],
                "style": int(line.cell.case.name.endswith(" synchronous")),
            }
            name = line.cell.case.name
            curves.append(against(line, lambda m: m["virtual_seconds"], accuracy, label=name, **look))
            delay, at_end = line.mean(_of("mean_delay")), line.mean(lambda run: run.in_loop)
            dots.append(Curve(name, [delay or 0.0], [100 * (at_end or 0.0)], str(look["colour"]), marker="o"))
        panels.append(Panel(runs.title(workload), "virtual seconds", "test accuracy in the loop, %", curves))
        panels.append(Panel("at the end", "mean delay, rounds", "test accuracy in the loop, %", dots))
    note = (
        "One device needs 1, 4 or 16 times as long for a batch. In a synchronous run everybody waits for the slowest, "
        "so it is the run in which all are as slow. Every device has the same number of rounds, so both end when the "
        "slowest has had its own; an asynchronous run learns from the others' rounds meanwhile."
    )
    return ItemTold(header, rows, [note], draw(panels, figure))


def _of(key: str) -> Callable[[Shown], float]:
    """A figure of the summary by name."""
    return lambda run: float(run.known[key])
