"""`dpzv train` and `dpzv resume`: run a recipe, show its progress, print the result and the statement."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from dpzv.config import Config
    from dpzv.runtime.journal import Observer, Snapshot

__all__ = ["resume", "train"]

Sets = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key; repeatable.", default_factory=list, show_default=False
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no statement; errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name, or a TOML file.")],
    set_: Sets,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; default runs/RECIPE-TIME.")] = None,
    max_seconds: Annotated[
        float,
        typer.Option("--max-seconds", help="Begin no further round after this time, then finish cleanly."),
    ] = float("inf"),
    beside_frozen: Annotated[
        bool, typer.Option("--beside-frozen", help="Also run the same with untrained devices (epsilon 0).")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a recipe under its privacy budget.

    Example: dpzv train flights --set privacy.epsilon=0.5 --out runs/half
    """
    from dpzv import config as configuration
    from dpzv import recipes

    tree = recipes.tree(recipe)
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
    max_seconds: Annotated[
        float,
        typer.Option("--max-seconds", help="Begin no further round after this time, then finish cleanly."),
    ] = float("inf"),
    quiet: Quiet = False,
    json: Json = False,
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
    """An observer with a progress bar that asks the run to stop on Ctrl-C or SIGTERM."""
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        if stopped:  # a second Ctrl-C does not wait for the round
            raise KeyboardInterrupt
        stopped = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if quiet:
            yield lambda snapshot: not stopped
        else:
            with _Bar() as bar:

                def observe(snapshot: Snapshot) -> bool:
                    bar.show(snapshot)
                    return not stopped

                yield observe
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Bar:
    """A rich progress bar on standard error, redrawn at most ten times a second."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("reading the data", total=None, figures="")
        self._shown = 0.0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot, unless the last one is younger than a tenth of a second."""
        from dpzv.metrics import headline_text

        now = time.monotonic()
        if now - self._shown < 0.1 and snapshot.stage == "rounds" and snapshot.t < snapshot.T:
            return
        self._shown = now
        figures = [f"round {snapshot.t}/{snapshot.T}"]
        if snapshot.metrics is not None:
            figures.append(headline_text(snapshot.metrics))
        figures.append(f"{snapshot.bytes_total / 1e6:.1f} MB")
        figures.append(f"epsilon {snapshot.epsilon_spent:.3g} of {snapshot.epsilon:.3g}")
        self._progress.update(
            self._task,
            description=snapshot.stage,
            total=max(snapshot.T, 1),
            completed=snapshot.t,
            figures=", ".join(figures),
        )


def _show(summaries: list[dict[str, Any]], folder: Path, *, quiet: bool, json: bool) -> None:
    """Print the result as a table and the statement in words, or as JSON."""
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(summaries[-1]), indent=2).decode() + "\n")
    elif not quiet:
        from dpzv.cli.show import result

        result(summaries, folder)
