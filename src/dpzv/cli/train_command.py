"""`dpzv recipes`, `dpzv train` and `dpzv resume`: run a recipe, show its progress, print result and statement."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dpzv.cli.options import Json, Recipe, Sets, tree_of, with_options
from dpzv.cli.watching import Summary, Watchable, at_once, watched
from dpzv.errors import ConfigError

if TYPE_CHECKING:
    from dpzv.config import Config, Tree

    Named = tuple[str, str, Config]  # the name of a run, its folder within that of the last one, its configuration

__all__ = ["ALONE", "recipes", "refuse_used", "resume", "runs_beside", "train", "trained"]

ALONE = " alone"
"""What the name of a run of one party ends with."""
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no statement; errors only.")]
JsonSummary = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]
Seconds = Annotated[
    float, typer.Option("--max-seconds", help="Begin no round after so many seconds, and finish the run.")
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


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """The options of `dpzv train`."""

    recipe: Recipe
    set_: Sets
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; default runs/RECIPE-TIME.")] = None
    max_seconds: Seconds = float("inf")
    beside: Annotated[
        str,
        typer.Option(
            "--beside",
            help="Runs to make before this one and to show beside it, separated by commas: frozen (untrained devices), "
            "frozen=WIDTH (untrained devices that send so many numbers a record), alone (each party by itself).",
            show_default=False,
        ),
    ] = ""
    record_view: Annotated[
        bool, typer.Option("--record-view", help="Keep what each device saw and holds, for `dpzv attack`.")
    ] = False
    quiet: Quiet = False
    json: JsonSummary = False


@with_options(Training)
def train(asked: Training) -> None:
    """Train a recipe, or the parties' own files in one process, under its privacy budget.

    Example: dpzv train flights --set privacy.epsilon=0.5 --out runs/half
    """
    from dpzv import config as configuration
    from dpzv.cli.show import result

    tree = tree_of(asked.recipe, asked.set_)
    config = configuration.parse(tree)
    folder = asked.out or Path("runs") / f"{Path(asked.recipe[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    runs = list(runs_beside(asked.beside, tree, config))
    refuse_used(folder, *(inner for _, inner, _ in runs if inner))
    quiet, record_view = asked.quiet or asked.json, asked.record_view
    summaries = trained(runs, folder, asked.max_seconds, quiet=quiet, record_view=record_view)
    result(summaries, folder, quiet=asked.quiet, json=asked.json)


def trained(
    runs: list[Named], folder: Path, max_seconds: float = float("inf"), *, quiet: bool, record_view: bool = False
) -> dict[str, Summary]:
    """The summaries of `runs_beside`, by their names; these runs share the records, and the last one is in `folder`."""
    from dpzv.runtime.run import load_whole, start  # imports torch, so configurations are checked first

    configs, made = [config for _, _, config in runs], []
    whole = load_whole(configs[-1])
    for name, inner, config in runs:
        run = partial(start, config, folder / inner, whole=whole, record_view=record_view and not inner)
        made.append(Watchable(name, folder / inner, run))
    return watched(made, max_seconds, quiet=quiet, threads=at_once(configs))


def refuse_used(folder: Path, *inner: str) -> None:
    """Refuse a folder that has a run, or runs beside one; `inner` are patterns of their names. Nothing is read yet."""
    if (folder / "config.toml").exists():
        state = "a finished" if (folder / "summary.json").exists() else "an unfinished"
        raise ConfigError(
            f"{folder} already holds {state} run; choose another --out for a new run. A run that was begun on the "
            f"command line goes on by `dpzv resume {folder}`."
        )
    if any(True for name in inner for _ in folder.glob(f"{name}/config.toml")):
        raise ConfigError(f"{folder} already holds runs that were made beside another; choose another --out.")


def runs_beside(words: str, tree: Tree, config: Config) -> Iterator[Named]:
    """The runs that `--beside` asks for, and last the run itself, which has no name and no folder of its own."""
    from dpzv import config as configuration
    from dpzv.runtime.baselines import UNTRAINED, alone, parties

    for word in [word.strip() for word in words.split(",") if word.strip()]:
        if word == "alone":
            for m, party in parties(config).items():
                yield party + ALONE, f"alone-{m}", alone(config, m)
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
    yield "", "", config


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

    run = Watchable("", folder, partial(resume_run, folder))
    result(watched([run], max_seconds, quiet=quiet or json), folder, quiet=quiet, json=json)
