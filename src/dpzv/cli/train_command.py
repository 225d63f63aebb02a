"""`dpzv recipes`, `dpzv train` and `dpzv resume`: run a recipe, show its progress, print result and statement."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dpzv.cli.options import Json, Recipe, Sets

if TYPE_CHECKING:
    from dpzv.config import Config
    from dpzv.runtime.journal import Observer, Snapshot

__all__ = ["recipes", "resume", "train"]

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no statement; errors only.")]
JsonSummary = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]
Seconds = Annotated[
    float, typer.Option("--max-seconds", help="Begin no further round after this time, then finish cleanly.")
]


def recipes(
    name: Annotated[str, typer.Argument(help="Show this recipe's file; without it, list all.")] = "",
    json: Json = False,
) -> None:
    """List the shipped recipes, or show one of them with the reason for every line.

    Example: dpzv recipes mnist
    """
    from dpzv import recipes as shipped

    if name and json:
        typer.echo(msgspec.json.encode(shipped.tree(name)).decode())
    elif name:
        typer.echo(shipped.read(name).rstrip())
    elif json:
        typer.echo(msgspec.json.encode({n: shipped.title(n) for n in shipped.names()}).decode())
    else:
        width = max(len(n) for n in shipped.names())
        for n in shipped.names():
            typer.echo(f"{n:<{width}}  {shipped.title(n)}")


def train(
    recipe: Recipe,
    set_: Sets,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; default runs/RECIPE-TIME.")] = None,
    max_seconds: Seconds = float("inf"),
    beside_frozen: Annotated[
        bool, typer.Option("--beside-frozen", help="Also run the same with untrained devices (epsilon 0).")
    ] = False,
    quiet: Quiet = False,
    json: JsonSummary = False,
) -> None:
    """Train a recipe under its privacy budget.

    Example: dpzv train flights --set privacy.epsilon=0.5 --out runs/half
    """
    from dpzv import config as configuration
    from dpzv import recipes as shipped

    tree = shipped.tree(recipe)
    for assignment in set_:
        tree = configuration.merge(tree, configuration.set_key(assignment))
    config = configuration.parse(tree)
    folder = out or Path("runs") / f"{Path(recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    summaries = []
    if beside_frozen:
        frozen = configuration.parse(configuration.merge(tree, {"train": {"rounds": 0}, "head": {"rule": "frozen"}}))
        summaries.append(_run(frozen, folder / "frozen", max_seconds, quiet=quiet or json))
    summaries.append(_run(config, folder, max_seconds, quiet=quiet or json))
    _show(summaries, folder, quiet=quiet, json=json)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.")],
    max_seconds: Seconds = float("inf"),
    quiet: Quiet = False,
    json: JsonSummary = False,
) -> None:
    """Continue a run after Ctrl-C, a crash or a power cut; a finished run is only shown again.

    Example: dpzv resume runs/first
    """
    from dpzv.runtime.run import resume as resume_run

    with _watching(quiet or json) as observe:
        summary = resume_run(folder, observe, max_seconds)
    _show([_require(summary, folder)], folder, quiet=quiet, json=json)


def _run(config: Config, folder: Path, max_seconds: float, *, quiet: bool) -> dict[str, Any]:
    from dpzv.runtime.run import start

    with _watching(quiet) as observe:
        summary = start(config, folder, observe, max_seconds)
    return _require(summary, folder)


def _require(summary: dict[str, Any] | None, folder: Path) -> dict[str, Any]:
    if summary is None:
        typer.echo(f"dpzv: interrupted; everything up to here is kept, go on with `dpzv resume {folder}`.", err=True)
        raise typer.Exit(130)
    return summary


@contextmanager
def _watching(quiet: bool) -> Iterator[Observer]:
    """An observer with a progress bar, redrawn at most ten times a second, that asks the run to stop on Ctrl-C."""
    from dpzv.cli.show import progress_bar, stop_asked

    bar, shown = progress_bar(quiet), 0.0
    task = bar.add_task("reading the data", total=None, figures="")
    with stop_asked() as stopped, bar:

        def observe(snapshot: Snapshot) -> bool:
            nonlocal shown
            now = time.monotonic()
            if not quiet and (now - shown >= 0.1 or snapshot.stage != "rounds" or snapshot.t >= snapshot.T):
                shown = now
                total = max(snapshot.T, 1)
                bar.update(
                    task, description=snapshot.stage, total=total, completed=snapshot.t, figures=_figures(snapshot)
                )
            return not stopped()

        yield observe


def _figures(snapshot: Snapshot) -> str:
    from dpzv.metrics import headline_text

    figures = [f"round {snapshot.t}/{snapshot.T}"]
    if snapshot.metrics is not None:
        figures.append(headline_text(snapshot.metrics))
    figures.append(f"{snapshot.bytes_total / 1e6:.1f} MB")
    figures.append(f"epsilon {snapshot.epsilon_spent:.3g} of {snapshot.epsilon:.3g}")
    return ", ".join(figures)


def _show(summaries: list[dict[str, Any]], folder: Path, *, quiet: bool, json: bool) -> None:
    """Print the result as a table and the statement in words, or as JSON."""
    from dpzv.cli.show import json_text, result

    if json:
        sys.stdout.write(json_text(summaries[-1]))
    elif not quiet:
        result(summaries, folder)
