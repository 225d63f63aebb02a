"""`dpzv recipes`, `dpzv train` and `dpzv resume`: run a recipe, show its progress, print result and statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dpzv.cli.options import Json, Recipe, Sets, tree_of
from dpzv.errors import ConfigError

if TYPE_CHECKING:
    from dpzv.config import Config, Tree
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
    beside: Annotated[
        str,
        typer.Option(
            "--beside",
            help="Run these before it and show them beside it, separated by commas: frozen (untrained devices), "
            "frozen=WIDTH (untrained, with so many numbers a record and device), alone (each party by itself).",
            show_default=False,
        ),
    ] = "",
    quiet: Quiet = False,
    json: JsonSummary = False,
) -> None:
    """Train a recipe under its privacy budget.

    Example: dpzv train flights --set privacy.epsilon=0.5 --out runs/half
    """
    from dpzv import config as configuration
    from dpzv.cli.show import result

    tree = tree_of(recipe, set_)
    config = configuration.parse(tree)
    from dpzv.runtime.run import start  # imports torch, so the configuration is checked first

    folder = out or Path("runs") / f"{Path(recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    summaries = {}
    for name, inner, other in [*_beside(beside, tree, config), ("", "", config)]:
        run = partial(start, other, folder / inner)
        summaries[name] = _watched(run, max_seconds, folder / inner, quiet=quiet or json)
    result(summaries, folder, quiet=quiet, json=json)


def _beside(words: str, tree: Tree, config: Config) -> Iterator[tuple[str, str, Config]]:
    """What `--beside` asks for: the name of each run, that of its folder within the run's, and its configuration."""
    from dpzv import config as configuration
    from dpzv.runtime.baselines import UNTRAINED, alone, parties

    for word in [word.strip() for word in words.split(",") if word.strip()]:
        if word == "alone":
            for m, party in parties(config).items():
                yield f"{party} alone", f"alone-{m}", alone(config, m)
            continue
        what, equals, width = word.partition("=")
        if what != "frozen" or (equals and not width.isdecimal()):
            raise ConfigError(
                f"--beside takes frozen, frozen=WIDTH and alone, got '{word}'; e.g. --beside frozen,alone."
            )
        # a head that only adds takes one number an output, and the refit makes a head of its own
        wide = {"devices": {"embedding": int(width)}, "head": {"model": "network"}} if equals else {}
        frozen = configuration.merge(configuration.merge(tree, UNTRAINED), wide)
        name = f"untrained, width {width}" if equals else "untrained devices"
        yield name, f"frozen-{width}" if equals else "frozen", configuration.parse(frozen)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.")],
    max_seconds: Seconds = float("inf"),
    quiet: Quiet = False,
    json: JsonSummary = False,
) -> None:
    """Continue a run after Ctrl-C, a crash or a power cut; a finished run is only shown again.

    Example: dpzv resume runs/first
    """
    from dpzv.cli.show import result
    from dpzv.runtime.run import resume as resume_run

    summary = _watched(partial(resume_run, folder), max_seconds, folder, quiet=quiet or json)
    result({"": summary}, folder, quiet=quiet, json=json)


def _watched(
    run: Callable[[Observer, float], dict[str, Any] | None], max_seconds: float, folder: Path, *, quiet: bool
) -> dict[str, Any]:
    """The summary of a run under a progress bar; ends with 130 if it is interrupted."""
    with _watching(quiet) as observe:
        summary = run(observe, max_seconds)
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
                shown, total, figures = now, max(snapshot.T, 1), _figures(snapshot)
                bar.update(task, description=snapshot.stage, total=total, completed=snapshot.t, figures=figures)
            return not stopped()

        yield observe


def _figures(snapshot: Snapshot) -> str:
    from dpzv.metrics import headline_text

    metric = "" if snapshot.metrics is None else f"{headline_text(snapshot.metrics)}, "
    spent = f"epsilon {snapshot.epsilon_spent:.3g} of {snapshot.epsilon:.3g}"
    return f"round {snapshot.t}/{snapshot.T}, {metric}{snapshot.bytes_total / 1e6:.1f} MB, {spent}"
