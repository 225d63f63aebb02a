"""`dpzv reproduce`: the tables and figures of the paper and ours, from runs that go on over several calls."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpzv.cli import options
from dpzv.cli.many_runs import fail, one_bar
from dpzv.cli.watching import warnings

if TYPE_CHECKING:
    from dpzv.report.reproduced import ItemRuns, ItemTold
    from dpzv.runtime.grid import Failure, Job, State
    from dpzv.runtime.reproduction import Asked, Cell

__all__ = ["reproduce"]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The options of `dpzv reproduce`."""

    name: Annotated[str, typer.Argument(help="An item, such as fig-convergence; tuning: all trials; all: everything.")]
    set_: options.SetsOfAll
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="WORKLOAD=PATH",
            help="Where a workload's own files lie; repeatable.",
            default_factory=list,
            show_default=False,
        ),
    ]
    scale: Annotated[
        Literal["smoke", "full"], typer.Option("--scale", help="smoke: a few rounds on few records, to see it work.")
    ] = "full"
    budget: Annotated[
        float, typer.Option("--budget", help="Seconds after which runs stop; the same command continues them.")
    ] = float("inf")
    list_: Annotated[bool, typer.Option("--list", help="Print the runs and their estimated seconds, and run none.")] = (
        False
    )
    out: Annotated[Path | None, typer.Option("--out", help="The folder; default runs/reproduce-SCALE.")] = None
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 1: in this process; 0: one a core.")] = 1
    quiet: options.Quiet = False


@options.with_options(Reproduction)
def reproduce(asked: Reproduction) -> None:
    """Draw the figures and tables of the paper from runs; finished ones keep their records and are not run again.

    Example: dpzv reproduce fig-convergence --budget 3600 --set runtime.accelerator=cuda
    """
    from dpzv import config as configuration
    from dpzv.runtime.reproduction import Asked
    from dpzv.runtime.reproduction_files import TUNING, named, own_data

    names = named(asked.name)
    data = dict(map(own_data, asked.data))
    out = asked.out or Path("runs") / f"reproduce-{asked.scale}"
    what = Asked(asked.scale, out, tuple(map(configuration.set_key, asked.set_)), data)
    if asked.list_:
        _list(names, what)
        return
    failures: list[Failure] = []
    until, stopped = time.monotonic() + asked.budget, False
    # the trials decide the settings of all other runs, so these are planned when the trials are told
    stages = [[name] for name in names if name == TUNING] + [[name for name in names if name != TUNING]]
    found: dict[str, tuple[ItemRuns, ItemTold]] = {}
    for stage in stages:
        if not stopped:
            failed = _run(_cells(stage, what), asked, out, until)
            stopped = failed is None
            failures += failed or []
        found |= _told(stage, what)
    _write(found, asked, out)
    fail(failures)
    if stopped and time.monotonic() < until:
        typer.echo("dpzv: interrupted; finished runs are kept: give the same command again to go on.", err=True)
        raise typer.Exit(130)


def _cells(names: list[str], what: Asked) -> list[Cell]:
    """The runs of some items, those that are worth most a second first."""
    from dpzv.runtime.reproduction import cells_of, ordered
    from dpzv.runtime.reproduction_files import item_of

    return ordered({name: cells_of(item_of(name), what) for name in names})


def _list(names: list[str], what: Asked) -> None:
    """Print every run with what it takes, in the order in which they would be run.

    Estimates of a workload are corrected by what its finished runs took.
    """
    from dpzv.report.reproduced import read_runs
    from dpzv.report.table_text import columned

    cells = _cells(names, what)
    took: dict[str, list[float]] = {}  # by workload: seconds taken, and seconds estimated
    done = [run for line in read_runs(cells, what.out) for run in line.finished]
    for run in done:
        both = took.setdefault(run.cell.workload, [0.0, 0.0])
        both[0] += float((run.summary or {}).get("seconds") or run.cell.seconds)
        both[1] += run.cell.seconds
    finished = {run.cell.job.key for run in done}
    lines, total = [["seconds", "state", "run"]], 0.0
    for cell in cells:
        real, estimated = took.get(cell.workload, (1.0, 1.0))
        seconds = cell.seconds * real / estimated
        total += 0.0 if cell.job.key in finished else seconds
        lines.append([f"{seconds:.0f}", "finished" if cell.job.key in finished else "to run", cell.job.key])
    sys.stdout.write(columned(lines) + f"\n\nTo run: {total:.0f} s, one after the other, as estimated.\n")


def _run(cells: list[Cell], asked: Reproduction, out: Path, until: float) -> list[Failure] | None:
    """Run what is not finished; `None` if it was stopped, or if the time is over."""
    from dpzv.runtime.grid import cores, run
    from dpzv.runtime.in_turn import run_in_turn

    jobs, finished = [cell.job for cell in cells], -1
    with one_bar(asked.quiet) as watch, warnings(quiet=True), _features_kept(out):

        def in_time(state: State) -> bool:
            nonlocal finished
            if state.runs != finished:
                finished = state.runs
                _leave_records(jobs, out)
            return watch(state) and time.monotonic() < until

        failures = (
            run_in_turn(jobs, out, in_time) if asked.jobs == 1 else run(jobs, out, asked.jobs or cores(), in_time)
        )
        _leave_records(jobs, out)
        return failures


@contextmanager
def _features_kept(out: Path) -> Iterator[None]:
    """Inside the block, runs and their processes share what layers that never move make of records."""
    from dpzv.runtime.computed_once import FOLDER

    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = before or str((out / "features").resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ[FOLDER]


def _leave_records(jobs: list[Job], out: Path) -> None:
    """Remove what finished runs hold beside their records: a hundred runs of twelve large networks fill a disk."""
    for job in jobs:
        folder = out / "runs" / job.key
        if (folder / "summary.json").exists():
            for name in ("weights", "checkpoint"):
                shutil.rmtree(folder / name, ignore_errors=True)


def _told(names: list[str], what: Asked) -> dict[str, tuple[ItemRuns, ItemTold]]:
    """What the scripts of some items tell about the runs that are finished."""
    from dpzv.report.reproduced import ItemRuns, read_runs
    from dpzv.report.reproduction_page import tell_item
    from dpzv.runtime.reproduction import cells_of
    from dpzv.runtime.reproduction_files import item_of, workloads

    found = {}
    for name in names:
        item = item_of(name)
        runs = ItemRuns(name, item, workloads(), read_runs(cells_of(item, what), what.out))
        found[name] = runs, tell_item(runs, what.out)
    return found


def _write(found: dict[str, tuple[ItemRuns, ItemTold]], asked: Reproduction, out: Path) -> None:
    """Write the page and the report pages of the runs, and say where they are and how much of it is there."""
    from dpzv.report.reproduction_page import write_page, write_reports

    data = [part for assigned in asked.data for part in ("--data", assigned)]
    command = shlex.join(["dpzv", "reproduce", asked.name, "--scale", asked.scale, *data])
    write_page(found, command, out / "reproduction.md")
    reports = write_reports([runs for runs, _ in found.values()], out)
    if asked.quiet:
        return
    lines = [line for runs, _ in found.values() for line in runs.lines]
    done = sum(bool(line.finished) for line in lines)
    typer.echo(f"{done} of {len(lines)} rows have runs; figures, tables and the page are in {out}.")
    if reports is not None:
        typer.echo(f"Runs side by side: {reports}")
