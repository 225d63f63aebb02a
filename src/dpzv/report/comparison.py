"""A comparison of methods: runs become records, records become rows and curves, and rows become text and sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dpzv.declarations import OURS
from dpzv.metrics import headline
from dpzv.report.figure_file import COLOURS, STYLES, axes_of, over_runs, plain_ticks
from dpzv.report.run_records import read_outcome
from dpzv.report.table_text import figure_text, metric_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["UNTRAINED", "Record", "ahead", "cells", "draw", "groups", "header", "notes", "read", "rows", "untuned"]

UNTRAINED = "untrained"
"""The name of runs whose devices stay as they start."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run. `epsilon` is what was asked for, or what untrained devices cost; `None` means no privacy."""

    method: str
    epsilon: float | None
    seed: int
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def read(folder: Path, method: str, epsilon: float | None, seed: int) -> Record:
    """The record of the finished run in `folder`; `epsilon` is `None` for untrained devices, whose start may cost."""
    summary, metrics = read_outcome(folder)
    assert summary is not None
    if epsilon is None or math.isinf(epsilon):
        epsilon = summary["epsilon"] if epsilon is None else None
    return Record(method, epsilon, seed, summary, metrics)


class Row(msgspec.Struct, frozen=True):
    """One method at one epsilon over its seeds: means, and `spread` as standard deviation (0 with one seed)."""

    method: str
    epsilon: float | None  # None: no privacy
    seeds: int
    metric: str  # accuracy | auc | r2 | loss
    refitted: float
    refitted_spread: float
    in_loop: float
    in_loop_spread: float
    accuracy: float | None  # of the refitted head, where `metric` is another
    accuracy_spread: float
    target: float | None  # a test accuracy of the head in the loop
    reached: int  # seeds that passed the target; the next two are means over them
    bytes_to_target: float | None
    rounds_to_target: float | None
    rounds: float
    bytes_total: float
    virtual_seconds: float
    mean_delay: float
    guarantee: bool
    guarantee_why: str
    compute: float  # a device's work for a batch, in units of DPZV's two forwards
    trials: int  # number of trials that chose the settings, judged on held-out training records; 0 if not tuned

    @property
    def name(self) -> str:
        """The method, marked where nobody tuned its settings for this recipe."""
        return self.method if self.trials or self.method == UNTRAINED else f"{self.method} (untuned)"


def rows(
    records: Sequence[Record], target: float | None, compute: dict[str, float], trials: dict[str, int]
) -> list[Row]:
    """One row for each method and epsilon, in the order they first appear; `compute` and `trials` by method."""
    grouped = groups(records).items()
    return [_row(group, target, compute.get(method, 1.0), trials.get(method, 0)) for (method, _), group in grouped]


def groups(records: Sequence[Record]) -> dict[tuple[str, float | None], list[Record]]:
    """The runs of each method and epsilon, in the order they first appear."""
    found: dict[tuple[str, float | None], list[Record]] = {}
    for record in records:
        found.setdefault((record.method, record.epsilon), []).append(record)
    return found


def _row(group: list[Record], target: float | None, compute: float, trials: int) -> Row:
    summaries = [record.summary for record in group]
    first = summaries[0]
    refitted = [headline(summary)[1] for summary in summaries]
    in_loop = [headline(summary["private_head"])[1] for summary in summaries]
    right = [s["test_accuracy"] for s in summaries if s["test_accuracy"] is not None and s["test_auc"] is not None]
    passed = [summary["targets"][str(target)] for summary in summaries if str(target) in summary["targets"]]
    return Row(
        method=group[0].method,
        epsilon=group[0].epsilon,
        seeds=len(group),
        metric=headline(first)[0],
        refitted=statistics.fmean(refitted),
        refitted_spread=_spread(refitted),
        in_loop=statistics.fmean(in_loop),
        in_loop_spread=_spread(in_loop),
        accuracy=statistics.fmean(right) if right else None,
        accuracy_spread=_spread(right),
        target=target,
        reached=len(passed),
        bytes_to_target=statistics.fmean(p["bytes"] for p in passed) if passed else None,
        rounds_to_target=statistics.fmean(p["round"] for p in passed) if passed else None,
        rounds=statistics.fmean(summary["rounds"] for summary in summaries),
        bytes_total=statistics.fmean(summary["bytes_up"] + summary["bytes_down"] for summary in summaries),
        virtual_seconds=statistics.fmean(summary["virtual_seconds"] for summary in summaries),
        mean_delay=statistics.fmean(summary["mean_delay"] for summary in summaries),
        guarantee=all(summary["guarantee"] for summary in summaries),
        guarantee_why=next((s["guarantee_why"] for s in summaries if not s["guarantee"]), first["guarantee_why"]),
        compute=compute,
        trials=trials,
    )


def header(table: Sequence[Row]) -> list[str]:
    """The names of the columns."""
    metric = metric_name(table[0].metric)
    names = ["method", "epsilon", f"{metric}, refitted", f"{metric}, in loop"]
    if table[0].accuracy is not None:
        names.append("accuracy, refitted")
    if table[0].target is not None:
        names += [f"{what} until {_percent(table[0].target)}" for what in ("MB", "rounds")]
    return [*names, "MB in all", "virtual s", "mean delay", "guarantee"]


def cells(row: Row) -> list[str]:
    """A row as words, one a column."""
    words = [
        row.name,
        "none" if row.epsilon is None else f"{row.epsilon:g}",
        _figure(row.metric, row.refitted, row.refitted_spread, row.seeds),
        # the head in the loop over untrained devices is not trained either
        "-" if row.method == UNTRAINED else _figure(row.metric, row.in_loop, row.in_loop_spread, row.seeds),
    ]
    if row.accuracy is not None:
        words.append(_figure("accuracy", row.accuracy, row.accuracy_spread, row.seeds))
    if row.target is not None:
        words += [
            _until(row, None if row.bytes_to_target is None else f"{row.bytes_to_target / 1e6:.1f}"),
            _until(row, None if row.rounds_to_target is None else f"{row.rounds_to_target:.0f}"),
        ]
    return [
        *words,
        f"{row.bytes_total / 1e6:.1f}",
        f"{row.virtual_seconds:.1f}",
        f"{row.mean_delay:.2f}",
        "yes" if row.guarantee else "no",
    ]


def ahead(table: Sequence[Row]) -> list[str]:
    """A sentence for each rival that reached the target with fewer bytes than dpzv at the same epsilon."""
    ours = {row.epsilon: row for row in table if row.method == OURS}
    sentences = []
    for row in table:
        dpzv = ours.get(row.epsilon)
        if dpzv is None or row.method in (OURS, UNTRAINED) or row.bytes_to_target is None or row.target is None:
            continue
        if dpzv.bytes_to_target is not None and dpzv.bytes_to_target <= row.bytes_to_target:
            continue
        against = "dpzv never did"
        if dpzv.bytes_to_target is not None:
            against = f"dpzv needed {dpzv.bytes_to_target / 1e6:.1f} MB{_of(dpzv)}"
        sentences.append(
            f"{row.method} reached {_percent(row.target)} with fewer bytes than dpzv at {_at(row.epsilon)}: "
            f"{row.bytes_to_target / 1e6:.1f} MB{_of(row)}; {against}."
        )
    return sentences


def untuned(table: Sequence[Row], recipe: str) -> list[str]:
    """Sentences about settings that nobody tuned for this recipe, or that had unequal numbers of trials."""
    trials = {row.method: row.trials for row in table if row.method != UNTRAINED}
    if never := [method for method, number in trials.items() if not number]:
        return [
            f"Untuned for {recipe}: {', '.join(never)}. dpzv has the recipe's own settings, the others have general "
            "ones, so this is no fair comparison of methods; `dpzv tune` gives each the same number of trials, and its "
            "best.toml is what --settings takes."
        ]
    if len(set(trials.values())) > 1:
        told = ", ".join(f"{method} {number}" for method, number in trials.items())
        return [f"The methods were tuned by unequal numbers of trials: {told}."]
    return []


def notes(table: Sequence[Row], seeds: int, eval_every: int) -> list[str]:
    """Sentences below the table: its spread, missing seeds, compute, and why a row has no guarantee."""
    lines = []
    if seeds > 1:
        lines.append(f"± is the standard deviation over {seeds} seeds.")
    lines += [
        f"{row.method} at {_at(row.epsilon)}: {row.seeds} of {seeds} seeds finished."
        for row in table
        if row.seeds < seeds
    ]
    if any(row.target is not None for row in table):
        lines.append(
            f"The target is looked for every {eval_every} rounds, with the head in the loop; "
            "bytes include the first fill of the table."
        )
    charged = dict.fromkeys(f"{row.method} {row.compute:g}" for row in table if row.method != UNTRAINED)
    lines.append(f"Compute charged for a batch, dpzv's two forwards being 1: {', '.join(charged)}.")
    return lines + _reasons(table)


def _reasons(table: Sequence[Row]) -> list[str]:
    """Why rows have no guarantee, one line a reason."""
    rows_of: dict[str, list[Row]] = {}
    for row in table:
        if not row.guarantee:
            rows_of.setdefault(row.guarantee_why.rstrip("."), []).append(row)
    lines = []
    for why, without in rows_of.items():
        whole = {m for m in (row.method for row in without) if all(r in without for r in table if r.method == m)}
        names = [row.method if row.method in whole else f"{row.method} at {_at(row.epsilon)}" for row in without]
        lines.append(f"No guarantee for {', '.join(dict.fromkeys(names))}: {why}.")
    return lines


def _at(epsilon: float | None) -> str:
    return "no privacy" if epsilon is None else f"epsilon {epsilon:g}"


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _figure(metric: str, mean: float, spread: float, seeds: int) -> str:
    return figure_text(metric, mean, spread if seeds > 1 else None)


def _of(row: Row) -> str:
    return "" if row.reached == row.seeds else f" ({row.reached} of {row.seeds})"


def _until(row: Row, text: str | None) -> str:
    if row.method == UNTRAINED:
        return "-"
    return "never" if text is None else text + _of(row)


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
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.set_xlabel("megabytes sent, first fill included")
    named = {"accuracy": "test accuracy in the loop, %", "auc": "test AUC in the loop", "r2": "test R^2 in the loop"}
    axes.set_ylabel(named.get(metric, metric))
    plain_ticks(axes, LogLocator(subs=(1, 2, 3, 5)))
    shown = [height for height in heights if math.isfinite(height)]
    if shown:
        margin = 0.06 * (max(shown) - min(shown)) or 0.01 * abs(shown[0]) or 0.01
        axes.set_ylim(min(shown) - margin, max(shown) + margin)


def _line(axes: Axes, group: list[Record], scale: float, colour: str, place: int, label: str) -> list[float]:
    """Mean and band over the seeds, at the rounds that all of them evaluated, and the refitted head's dot.

    The heights that must be seen are returned: those of the line's second half, its band included, and of the dot.
    """
    x, y, deviation = over_runs(
        [
            [(line["round"], sent, scale * headline(line)[1]) for line in record.metrics if (sent := _sent(line)) > 0]
            for record in group
        ]
    )
    style = STYLES[place % len(STYLES)]
    axes.plot(x, y, color=colour, linestyle=style, linewidth=1.6, label=label, zorder=3)
    low = high = y
    if deviation:
        low, high = ([mean + sign * d for mean, d in zip(y, deviation, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0, zorder=2)
    end = statistics.fmean(_sent(record.summary) for record in group)
    refitted = scale * statistics.fmean(headline(record.summary)[1] for record in group)
    inside = "white" if place % 2 else colour
    axes.plot([end], [refitted], "o", color=colour, markerfacecolor=inside, markersize=5, zorder=4)
    return [*low[len(y) // 2 :], *high[len(y) // 2 :], refitted]


def _sent(line: dict[str, Any]) -> float:
    """Megabytes up and down, of a summary or a line of metrics."""
    return float(line["bytes_up"] + line["bytes_down"]) / 1e6
