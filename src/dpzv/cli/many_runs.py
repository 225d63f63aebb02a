"""Many runs under one progress bar, for `compare`, `tune` and `reproduce`, and how their failures are told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from dpzv.cli.options import Comparison
    from dpzv.runtime.compute_cost import Compute
    from dpzv.runtime.grid import Failure, Job, State, Watch

__all__ = ["Executed", "Told", "execute", "fail", "one_bar", "tell"]

NAMED = 3
"""So many runs are named that failed for one reason; the others are counted."""


@dataclass(frozen=True, slots=True)
class Executed:
    """The outcome of a grid of runs: the jobs, what the virtual clock charged them, and those that failed."""

    jobs: list[Job]
    compute: Compute
    failures: list[Failure]


Prepare = Callable[["Watch"], "tuple[list[Job], Compute, int] | None"]
"""Gives the jobs, what was measured for them, and how many run at once; `None` if it was stopped."""


def execute(prepare: Prepare, folder: Path, *, quiet: bool) -> Executed:
    """Prepare the runs, then run them all under one progress bar; ends with 130 if interrupted."""
    from dpzv.runtime import grid

    with one_bar(quiet) as watch:
        prepared = prepare(watch)
        if prepared is not None:
            made, compute, at_once = prepared
            failures = grid.run(made, folder, at_once, watch)
            if failures is not None:
                return Executed(made, compute, failures)
    typer.echo(
        "dpzv: interrupted; finished runs are kept and the others go on where they were: give the same command again.",
        err=True,
    )
    raise typer.Exit(130)


def fail(failures: Sequence[Failure]) -> None:
    """Say which runs failed and why, each reason once, and end with the exit code of the first; nothing if none did."""
    by_reason: dict[str, list[str]] = {}
    for failure in failures:
        by_reason.setdefault(failure.sentence, []).append(failure.name)
    for sentence, names in by_reason.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        typer.echo(f"dpzv: {', '.join(names[:NAMED])}{more} failed: {sentence}", err=True)
    if failures:
        raise typer.Exit(failures[0].code)


@dataclass(frozen=True, slots=True)
class Told:
    """What a comparison says: a table of words, and the sentences above and below it."""

    header: list[str]
    rows: list[list[str]]
    above: list[str]
    below: list[str]


def tell(asked: Comparison, told: Told, values: dict[str, Any], folder: Path) -> None:
    """Write table.json with `values`, table.md and the report page, and print one of the tables."""
    from dpzv.cli.show import REPORT, json_text
    from dpzv.durable import write_atomically
    from dpzv.report.page import write_page
    from dpzv.report.table_text import paged

    text = json_text({"schema": 1, "recipe": asked.recipe[0], "accounting": asked.accounting, **values})
    write_atomically(folder / "table.json", text.encode())
    write_atomically(folder / "table.md", paged(told.header, told.rows, told.above, told.below).encode())
    write_page([folder / "runs"], folder / REPORT)
    if asked.json:
        sys.stdout.write(text)
    elif not asked.quiet:
        _show(told, folder)


def _show(told: Told, folder: Path) -> None:
    from rich.console import Console

    from dpzv.cli.show import REPORT, columns
    from dpzv.report.table_text import columned

    console = Console()
    for line in told.above:
        console.print(line, style="bold", highlight=False, markup=False, soft_wrap=True)
    if told.above:
        console.print()
    if console.is_terminal:
        console.print(columns(told.header, told.rows, left=("method", "devices", "guarantee")))
    else:
        sys.stdout.write(columned([told.header, *told.rows]) + "\n")
    console.print()
    for line in [*told.below, f"Table and figure: {folder}", f"Report page: {folder / REPORT}"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def one_bar(quiet: bool) -> Iterator[Watch]:
    """A watch with one bar over all runs that asks them to stop on Ctrl-C or SIGTERM."""
    from dpzv.runtime.progress import Pace, progress_bar, stop_asked

    bar, pace = progress_bar(quiet), Pace()
    task = bar.add_task("starting", total=None, figures="")
    with stop_asked() as stopped, bar:

        def watch(state: State) -> bool:
            failed = f", {state.failed} failed" if state.failed else ""
            paced = pace.text(state.rounds, state.rounds_total, time.monotonic()) if state.rounds_total else ""
            figures = f"round {state.rounds}/{state.rounds_total}, {state.runs} of {state.runs_total} runs{failed}"
            figures += f", {paced}" if paced else ""
            bar.update(
                task,
                description="stopping" if stopped() else state.stage,
                total=state.rounds_total or None,
                completed=state.rounds,
                figures=figures if state.runs_total else "",
            )
            return not stopped()

        yield watch
