"""What training buys at each width: summaries become rows, and rows become words, sentences and a figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dpzv.metrics import headline
from dpzv.report.figure_file import BLUE, GREEN, GREY, ORANGE, PINK, STYLES, axes_of, plain_ticks
from dpzv.report.table_text import figure_text, metric_name

__all__ = [
    "ALONE",
    "BACKPROPAGATION",
    "TRAINED",
    "UNTRAINED",
    "Measured",
    "cells",
    "draw",
    "header",
    "lines",
    "notes",
    "rows",
]

UNTRAINED, TRAINED, BACKPROPAGATION, ALONE = "untrained", "trained", "backpropagation", "alone"
"""What is trained in a run: nothing, all devices, all devices by backpropagation, one device that is the only one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: what was trained, by which party if it was alone, and what the run says.

    `width` counts the numbers that a device sends for a record.
    """

    kind: str
    party: str
    width: int
    epsilon: float
    seed: int
    summary: dict[str, Any]


class WidthRow(msgspec.Struct, frozen=True):
    """The runs of one kind at one width and epsilon over their seeds."""

    kind: str
    party: str  # empty unless it is alone
    width: int
    epsilon: float | None  # None: no privacy
    metric: str  # accuracy | auc | r2 | loss
    values: dict[int, float]  # by seed
    mean: float
    standard_error: float | None  # None with one seed
    bytes_total: float | None  # None: nothing was sent, all features were in one place
    guarantee: bool
    guarantee_why: str

    @property
    def label(self) -> str:
        """What was trained in these runs, in words."""
        if self.kind == TRAINED:
            return "trained" if self.epsilon is not None else "trained without noise"
        return f"{self.party} alone, trained" if self.kind == ALONE else self.kind


def rows(measured: Sequence[Measured]) -> list[WidthRow]:
    """One row for each kind, party, epsilon and width, in the order they first appear."""
    groups: dict[tuple[Any, ...], list[Measured]] = {}
    for one in measured:
        groups.setdefault((one.width, one.kind, one.party, one.epsilon), []).append(one)
    return [_row(group) for group in groups.values()]


def _row(group: list[Measured]) -> WidthRow:
    first, summaries = group[0], [one.summary for one in group]
    values = {one.seed: headline(one.summary)[1] for one in group}
    epsilon: float | None = first.epsilon
    if first.kind == UNTRAINED:
        epsilon = first.summary["epsilon"]  # what its start cost
    sent, why = None, "backpropagation has no privacy"
    if first.kind != BACKPROPAGATION:
        sent = statistics.fmean(summary["bytes_up"] + summary["bytes_down"] for summary in summaries)
        why = next((s["guarantee_why"] for s in summaries if not s["guarantee"]), first.summary["guarantee_why"])
    return WidthRow(
        kind=first.kind,
        party=first.party,
        width=first.width,
        epsilon=None if epsilon is None or math.isinf(epsilon) else epsilon,
        metric=headline(first.summary)[0],
        values=values,
        mean=statistics.fmean(values.values()),
        standard_error=_standard_error(list(values.values())),
        bytes_total=sent,
        guarantee=all(summary.get("guarantee", False) for summary in summaries),
        guarantee_why=why,
    )


def header(table: Sequence[WidthRow]) -> list[str]:
    """The names of the columns."""
    metric = metric_name(table[0].metric)
    return ["numbers", "devices", "epsilon", metric, "MB in all", "guarantee"]


def cells(row: WidthRow) -> list[str]:
    """A row as words, one a column."""
    return [
        str(row.width),
        row.label,
        "none" if row.epsilon is None else f"{row.epsilon:.3g}",
        figure_text(row.metric, row.mean, row.standard_error),
        "-" if row.bytes_total is None else _megabytes(row.bytes_total),
        "yes" if row.guarantee else "no",
    ]


def _best_alone(table: Sequence[WidthRow], width: int) -> WidthRow | None:
    """The party that does best alone at this width, if there are several parties."""
    found = [row for row in table if row.kind == ALONE and row.width == width]
    return max(found, key=lambda row: _sign(row) * row.mean) if len(found) > 1 else None


def notes(table: Sequence[WidthRow], seeds: int) -> list[str]:
    """Sentences below the table: what training bought at each width, its bytes, and what the rows mean."""
    lines = [
        "Numbers are those that a device sends for a record; MB are all bytes of a run, the first upload included."
    ]
    if seeds > 1:
        lines.append(f"± is the standard error over {seeds} seeds; differences are taken seed by seed.")
    lines += [
        f"{row.label}, width {row.width}: {len(row.values)} of {seeds} seeds finished."
        for row in table
        if len(row.values) < seeds
    ]
    lines += _bought(table)
    lines += _uploads(table)
    if any(row.kind == ALONE for row in table):
        lines.append("A party alone has its own columns only, with the same recipe, epsilon and refit.")
    lines.append("No privacy, backpropagation: a ceiling, never a recipe. One process sees all features and labels.")
    reasons: dict[str, dict[str, None]] = {}
    for row in table:
        if not row.guarantee and row.epsilon is not None:
            reasons.setdefault(row.guarantee_why.rstrip("."), {})[row.label] = None
    return lines + [f"No guarantee for {'; '.join(labels)}: {why}." for why, labels in reasons.items()]


def _bought(table: Sequence[WidthRow]) -> Iterator[str]:
    """How far training is above untrained devices, and above the best party alone, at each width and epsilon."""
    untrained = {row.width: row for row in table if row.kind == UNTRAINED}
    spent = next((row.epsilon for row in table if row.kind == ALONE), None)
    for row in table:
        if row.kind != TRAINED or row.epsilon is None:
            continue
        said = []
        if base := untrained.get(row.width):
            said.append(_above(row, base, "untrained devices"))
        alone = _best_alone(table, row.width)
        if alone is not None and row.epsilon == spent:
            said.append(_above(row, alone, f"the best party alone, {alone.party}"))
        if said:
            yield f"Width {row.width}: training at epsilon {row.epsilon:g} is {', and '.join(said)}."


def _above(row: WidthRow, base: WidthRow, what: str) -> str:
    """How far `row` is above or below `base`, over the seeds that both have: they share their starts."""
    shared = [seed for seed in row.values if seed in base.values]
    if not shared:
        return f"without a seed in common with {what}"
    differences = [_sign(row) * (row.values[seed] - base.values[seed]) for seed in shared]
    mean, error = statistics.fmean(differences), _standard_error(differences)
    size = f"{100 * abs(mean):.2f} points" if row.metric == "accuracy" else f"{abs(mean):.4f}"
    errors = f" ({abs(mean) / error:.1f} standard errors)" if error else ""
    return f"{size} {'above' if mean >= 0 else 'below'} {what}{errors}"


def _uploads(table: Sequence[WidthRow]) -> Iterator[str]:
    """What one upload of the widest untrained embeddings costs, beside what training costs at each width."""
    untrained = [row for row in table if row.kind == UNTRAINED]
    trained = [row for row in table if row.kind == TRAINED and row.epsilon is not None]
    if not untrained or not trained:
        return
    widest = max(untrained, key=lambda row: row.width)
    spent = trained[0].epsilon
    told = [
        f"{_megabytes(row.bytes_total or 0)} MB at width {row.width} ({figure_text(row.metric, row.mean, None)})"
        for row in trained
        if row.epsilon == spent
    ]
    yield (
        f"One upload of untrained embeddings of width {widest.width} costs {_megabytes(widest.bytes_total or 0)} MB "
        f"({figure_text(widest.metric, widest.mean, None)}); training at epsilon {spent:g} costs {', '.join(told)}."
    )


def _sign(row: WidthRow) -> float:
    """1 where more is better, -1 for a loss."""
    return -1.0 if row.metric == "loss" else 1.0


def _megabytes(sent: float) -> str:
    return f"{sent / 1e6:.1f}" if sent >= 1e5 else f"{sent / 1e6:.2g}"


def _standard_error(values: list[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def draw(table: Sequence[WidthRow], title: str, path: Path) -> None:
    """Write the figure as SVG: a line over the widths for each kind of row, with bars of one standard error.

    Of the parties alone only the best and the worst are drawn, by their mean over the widths.
    """
    metric = table[0].metric
    scale = 100.0 if metric == "accuracy" else 1.0
    with axes_of(title, path) as axes:
        from matplotlib.ticker import FixedLocator  # slow to import

        for label, line, look in lines(table):
            x = [row.width for row in line]
            y = [scale * row.mean for row in line]
            bars = [scale * (row.standard_error or 0.0) for row in line]
            axes.errorbar(x, y, yerr=bars, label=label, capsize=2.5, elinewidth=1, markersize=5, linewidth=1.6, **look)
        axes.set_xscale("log", base=2)
        plain_ticks(axes, FixedLocator(sorted({row.width for row in table})))
        axes.set_xlabel("numbers that a device sends for a record")
        axes.set_ylabel(f"test {metric_name(metric)}" + (", %" if metric == "accuracy" else ""))


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
