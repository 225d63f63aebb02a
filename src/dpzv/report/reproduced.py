"""The runs of an item of `dpzv reproduce` as its script sees them: records of finished runs, the state of others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpzv.report.run_records import read_outcome
from dpzv.report.table_text import paged
from dpzv.runtime.reproduction import Cell
from dpzv.runtime.reproduction_files import Item, Workload

__all__ = [
    "NOT_YET",
    "ItemRuns",
    "ItemTold",
    "Line",
    "Shown",
    "budget_text",
    "lines_of",
    "percent",
    "read_runs",
    "standard",
]

NOT_YET = "not run yet"

MOST_WAITING = 3
"""Up to this many rows of a workload that were not run have a line each; more of them are told together."""

WITHOUT_PRIVACY = ("dpzv.runtime.plain_models", "dpzv.runtime.ceiling")
"""The program of the strong simple models, which have no privacy."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One run: its summary and its lines of metrics, or `None` if it is not finished."""

    cell: Cell
    summary: dict[str, Any] | None
    metrics: list[dict[str, Any]]

    @property
    def known(self) -> dict[str, Any]:
        """The summary of a finished run."""
        assert self.summary is not None
        return self.summary

    @property
    def in_loop(self) -> float:
        """The test accuracy of the head in the loop at the end; of a program without one, its test accuracy.

        A head that never moved has none.
        """
        found = self.known.get("private_head", self.known)
        share = found["test_accuracy"] if found.get("trained", True) else None
        return math.nan if share is None else float(share)

    @property
    def refitted(self) -> float:
        """The test accuracy of a final head that was fitted after the rounds; a run may have none."""
        if not self.cell.job.program and self.cell.job.config.head.final == "private":
            return math.nan
        found = self.known.get("test_accuracy")
        return math.nan if found is None else float(found)

    @property
    def megabytes(self) -> float:
        """What was sent, the first fill included."""
        return float(self.known.get("bytes_up", 0) + self.known.get("bytes_down", 0)) / 1e6

    @property
    def until(self) -> float:
        """Megabytes until the workload's target; infinite if it was never reached.

        A run without rounds notes no target: its head is fitted when everything was sent.
        """
        passed = list(self.known.get("targets", {}).values())
        if passed:
            return float(passed[0]["bytes"]) / 1e6
        target = self.cell.job.config.train.target
        fitted = not self.cell.job.rounds and bool(target) and self.in_loop >= target[0]
        return self.megabytes if fitted else math.inf

    @property
    def at_once(self) -> bool:
        """Whether the target was passed at the first evaluation after round 0, so that fewer bytes might have done."""
        passed = list(self.known.get("targets", {}).values())
        first = next((line["round"] for line in self.metrics if line["round"]), None)
        return bool(passed) and passed[0]["round"] == first


@dataclass(frozen=True, slots=True)
class Line:
    """The runs of one workload, row, accounting, budget and case over their seeds."""

    runs: tuple[Shown, ...]

    @property
    def cell(self) -> Cell:
        """What all its runs have in common."""
        return self.runs[0].cell

    @property
    def finished(self) -> list[Shown]:
        """The runs that have a summary."""
        return [run for run in self.runs if run.summary is not None]

    @property
    def label(self) -> str:
        """The row in words, marked where nobody tuned it."""
        return self.cell.kind.title if self.cell.trials != 0 else f"{self.cell.kind.title} (untuned)"

    @property
    def named(self) -> str:
        """The row in words, and its case, unless that is a place on an axis."""
        case = self.cell.case
        return f"{self.label}, {case.name}" if case.name and case.x is None else self.label

    @property
    def rule(self) -> tuple[str, str]:
        """Its accounting and its budget in words; a program without privacy has neither, and no release costs 0."""
        config = self.cell.job.config
        if self.cell.job.program in WITHOUT_PRIVACY:
            return "-", "none"
        if not self.cell.job.rounds and config.head.rule == "frozen":
            return self.cell.accounting, "0"
        return self.cell.accounting, budget_text(self.cell.epsilon)

    @property
    def status(self) -> str:
        """How many of its runs are finished, or why none is."""
        if not self.finished:
            return self.cell.missing or NOT_YET
        return "" if len(self.finished) == len(self.runs) else f"{len(self.finished)} of {len(self.runs)} seeds"

    def mean(self, value: Callable[[Shown], float]) -> float | None:
        """The mean of a figure over the finished runs; `None` without any."""
        return statistics.fmean(map(value, self.finished)) if self.finished else None

    def text(self, value: Callable[[Shown], float], form: Callable[[float], str]) -> str:
        """The mean with its standard deviation as words; `-` without a figure, `never` for what was never reached."""
        found = [value(run) for run in self.finished]
        if not found or any(map(math.isnan, found)):
            return "-"
        if any(map(math.isinf, found)):
            reached = [one for one in found if math.isfinite(one)]
            return f"{form(statistics.fmean(reached))} ({len(reached)} of {len(found)})" if reached else "never"
        spread = f" ± {form(statistics.stdev(found))}" if len(found) > 1 else ""
        return form(statistics.fmean(found)) + spread


@dataclass(frozen=True, slots=True)
class ItemRuns:
    """What the script of an item gets: its name, its file, the workloads by name, and its runs."""

    name: str
    item: Item
    workloads: Mapping[str, Workload]
    lines: tuple[Line, ...]

    @property
    def places(self) -> list[str]:
        """Its workloads that have a finished run, in order."""
        return list(dict.fromkeys(line.cell.workload for line in self.lines if line.finished))

    def of(self, workload: str) -> list[Line]:
        """The lines of one workload that have a finished run."""
        return [line for line in self.lines if line.cell.workload == workload and line.finished]

    def title(self, workload: str) -> str:
        """A workload in words."""
        return self.workloads[workload].title


@dataclass(frozen=True, slots=True)
class ItemTold:
    """What the script of an item tells: a table, sentences below it, and whether it drew a figure."""

    header: list[str]
    rows: list[list[str]]
    notes: list[str]
    drawn: bool

    def page(self) -> str:
        """The table and the sentences, for a page; many rows of a workload that are not run are one line."""
        return paged(self.header, _folded(self.rows), [], self.notes)


def _folded(rows: list[list[str]]) -> list[list[str]]:
    """`rows` in which those that were not run for the same reason on one workload are told together."""
    kept: list[list[str]] = []
    waiting: dict[tuple[str, str], list[list[str]]] = {}
    for row in rows:
        why = next((cell for cell in row[1:] if cell.startswith("not run")), "")
        group = waiting.setdefault((row[0], why), []) if why else kept
        group.append(row)
    for (workload, why), group in waiting.items():
        together = [workload, f"{len(group)} rows", *["-"] * (len(group[0]) - 3), why]
        kept += [together] if len(group) > MOST_WAITING else group
    return kept


def read_runs(cells: Sequence[Cell], out: Path) -> tuple[Line, ...]:
    """The lines of `cells`, with what their run folders hold."""
    return lines_of([Shown(cell, *read_outcome(out / "runs" / cell.job.key)) for cell in cells])


def lines_of(runs: Sequence[Shown]) -> tuple[Line, ...]:
    """Runs that differ by their seed alone, together."""
    groups: dict[tuple[Any, ...], list[Shown]] = {}
    for run in runs:
        cell = run.cell
        key = (cell.workload, cell.row, cell.accounting, cell.epsilon, cell.case.name)
        groups.setdefault(key, []).append(run)
    return tuple(Line(tuple(group)) for group in groups.values())


def standard(runs: ItemRuns) -> tuple[list[str], list[list[str]]]:
    """The table that suits most items: every line with its accuracy and bytes, or why it has none."""
    header = ["workload", "row", "accounting", "epsilon", "case", "in loop, %", "refitted, %", "MB", "state"]
    rows = []
    for line in runs.lines:
        cell = line.cell
        figures = [line.text(lambda run: run.in_loop, percent), line.text(lambda run: run.refitted, percent)]
        sent = "-" if cell.job.program else line.text(lambda run: run.megabytes, lambda value: f"{value:.1f}")
        what = [runs.title(cell.workload), line.label, *line.rule, cell.case.name or "-"]
        rows.append([*what, *figures, sent, line.status or "-"])
    rows = [list(row) for row in dict.fromkeys(map(tuple, rows))]  # a simple model is the same for all budgets
    rows += [[text, *["-"] * 7, "not run: cost"] for text in runs.item.left_out]
    return header, rows


def budget_text(epsilon: float) -> str:
    """An epsilon as words."""
    return "none" if math.isinf(epsilon) else f"{epsilon:g}"


def percent(share: float) -> str:
    """A share in percent, without the sign."""
    return f"{100 * share:.2f}"
