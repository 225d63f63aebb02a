"""How runs are shown when they end: a table and the privacy statement."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from dpzv.errors import ConfigError
from dpzv.metrics import headline_text, improves
from dpzv.report.page import write_page

__all__ = ["REPORT", "columns", "json_text", "result", "statement_text"]

REPORT = "report.html"
UNTRAINED = "untrained devices"
INDENT = 15  # where the text of a statement's labelled line begins


def columns(names: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str]) -> Table:
    """A table without lines; the columns named in `left` are aligned to the left, all others to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def json_text(values: object) -> str:
    """Values as indented JSON that ends with a line break."""
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n"


def result(summaries: dict[str, dict[str, Any]], folder: Path, *, quiet: bool, json: bool) -> None:
    """Print one row a run and the statement of the last one, or the last summary as JSON, or nothing.

    `summaries` have the names of their runs; a run without a name is called by its method. In any case the report page
    of `folder` is written into it.

    Raises `ConfigError` if the result of a run is not finite, and so is none.
    """
    write_page([folder], folder / REPORT)
    if json:
        sys.stdout.write(json_text(list(summaries.values())[-1]))
    elif not quiet:
        _tables(summaries, folder)
    if not all(math.isfinite(summary["test_loss"] or math.nan) for summary in summaries.values()):
        raise ConfigError(
            f"the final head's test loss must be finite, got one that is not in {folder}: it diverged; start a new run "
            "with smaller steps (head.eta_0, train.eta_m)."
        )


def _tables(summaries: dict[str, dict[str, Any]], folder: Path) -> None:
    names = ("run", "test", "private head", "rounds", "MB", "seconds", "epsilon")
    rows, together = [], ", all parties" if len(summaries) > 1 else ""
    for name, summary in summaries.items():
        if not name and summary["untrained"] and UNTRAINED not in summaries:
            rows.append(_untrained_row(summary["untrained"]))
        epsilon, private = summary["epsilon"], summary["private_head"]
        row = [
            name or (UNTRAINED if summary["rounds"] == 0 else summary["method"] + together),
            headline_text(summary),
            headline_text(private) if private["trained"] else "not trained",
            str(summary["rounds"]),
            f"{(summary['bytes_up'] + summary['bytes_down']) / 1e6:.1f}",
            f"{summary['seconds']:.1f}",
            "none" if epsilon is None or math.isinf(epsilon) else f"{epsilon:g}",
        ]
        rows.append(row)
    console = Console()
    console.print(columns(names, rows, left=names[:3]))
    console.print()
    if before := summary["untrained"]:
        _added(summary, before)
    _took_part(summary["participation"])
    if chosen := summary["final_head"]:
        _chosen(chosen)
    statement_text(summary["statement"])
    console.print()
    console.print(f"Run folder: {folder}", highlight=False, markup=False)
    console.print(f"Report page: {folder / REPORT}", highlight=False, markup=False)


def _untrained_row(before: Mapping[str, Any]) -> list[str]:
    """The devices as they started: they sent all records once, nothing came back, and no other run was needed."""
    return [UNTRAINED, headline_text(before), "not trained", "0", f"{before['bytes_up'] / 1e6:.1f}", "-", "0"]


def _added(summary: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Print two sentences if training has added nothing."""
    if not improves(summary, before):
        statement_text(
            f"Training added nothing: untrained devices give {headline_text(before)}, the trained ones "
            f"{headline_text(summary)}. With train.rounds=0 nothing is released and no budget is spent."
        )
        Console().print()


def _took_part(participation: Sequence[Mapping[str, Any]]) -> None:
    """Print how many rounds each device took part in, how many of its records were clipped, and what went wrong."""
    parts = []
    for one in participation:
        zeroed = [f"{one['zeroed_rows']} rows beyond the bound on embeddings"] if one["zeroed_rows"] else []
        clipped = [f"{one['clipped_share']:.1%} of records clipped"] if one["clipped_share"] else []
        notes = clipped + zeroed + ["no test embeddings"] * (not one["tested"])
        parts.append(f"{one['device']}: {one['rounds']}" + (f" ({', '.join(notes)})" if notes else ""))
    Console().print(f"Rounds of each device: {', '.join(parts)}", highlight=False, markup=False)
    Console().print()


def _chosen(chosen: Mapping[str, Any]) -> None:
    """Print what the final head is, and what it was chosen among."""
    scores = ", ".join(
        f"{name}: {'-' if loss is None else format(loss, '.4f')}" for name, loss in chosen["losses"].items()
    )
    parts = f" in {chosen['folds']} folds" if chosen["folds"] > 1 else ""
    why = f", chosen by the loss on {chosen['records']} held-out training records{parts} ({scores})" if scores else ""
    setting = f" ({chosen['setting']})" if chosen["setting"] else ""
    statement_text(f"Final head: {chosen['name']}{setting}{why}")
    Console().print()


def statement_text(text: str) -> None:
    """Print a statement, its long lines folded under their text."""
    console = Console()
    for line in text.splitlines():
        folded = textwrap.fill(line, console.width - 1, subsequent_indent=" " * INDENT)
        console.print(folded, highlight=False, markup=False)
