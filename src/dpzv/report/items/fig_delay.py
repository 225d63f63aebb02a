"""`fig-delay`: one slow device: accuracy against virtual time and against mean delay, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpzv.report.panels import CYCLE, Curve, Panel, accuracy, against, draw
from dpzv.report.reproduced import ItemRuns, ItemTold, Shown, percent

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """Accuracy over time above, at the end over the mean delay below, a panel for each row."""
    header = ["workload", "row", "speeds", "in loop, %", "virtual s", "mean delay, rounds", "largest delay", "state"]
    rows = []
    for line in runs.lines:
        figures = [
            line.text(lambda run: run.in_loop, percent),
            *(
                line.text(_of(key), lambda value: f"{value:.1f}")
                for key in ("virtual_seconds", "mean_delay", "max_delay")
            ),
        ]
        what = [runs.title(line.cell.workload), line.label, line.cell.case.name]
        rows.append([*what, *figures, line.status or "-"])
    panels = [panel for workload in runs.places for panel in _panels(runs, workload)]
    note = (
        "One device needs 1, 4 or 16 times as long for a batch. In a synchronous run everybody waits for the slowest, "
        "so it is the run in which all are as slow: its rounds are those of equal speeds, and panels of delay have one "
        "point for both. Every device has the same number of rounds, so both end when the "
        "slowest has had its own; an asynchronous run learns from the others' rounds meanwhile. What frozen devices "
        "send never gets old, so with them only the order of the head's batches differs. One seed: with the "
        "first-order head some tenths of a point, and with the zeroth-order head one or two points, are noise."
    )
    return ItemTold(header, rows, [note], draw(panels, figure))


def _panels(runs: ItemRuns, workload: str) -> list[Panel]:
    """The panels of time of all rows, then those of delay."""
    over_time, at_the_end = [], []
    lines = runs.of(workload)
    for row in dict.fromkeys(line.cell.row for line in lines):
        curves, dots = [], []
        own = [line for line in lines if line.cell.row == row]
        for i, line in enumerate(own):
            name, colour = line.cell.case.name, CYCLE[(i + 1) // 2 % len(CYCLE)]
            synchronous = name.endswith(" synchronous")
            curves.append(
                against(
                    line, lambda m: m["virtual_seconds"], accuracy, label=name, colour=colour, style=int(synchronous)
                )
            )
            if synchronous:
                continue  # its rounds are those of equal speeds
            delay, at_end = line.mean(_of("mean_delay")), line.mean(lambda run: run.in_loop)
            dots.append(Curve(name, [delay or 0.0], [100 * (at_end or 0.0)], colour, marker="o"))
        title = f"{runs.title(workload)}: {own[0].label}"
        over_time.append(Panel(title, "virtual seconds", "test accuracy in the loop, %", curves))
        at_the_end.append(Panel(f"{title}, at the end", "mean delay, rounds", "test accuracy in the loop, %", dots))
    return over_time + at_the_end


def _of(key: str) -> Callable[[Shown], float]:
    """A figure of the summary by name."""
    return lambda run: float(run.known[key])
