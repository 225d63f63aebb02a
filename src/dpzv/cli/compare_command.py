"""`dpzv compare`: several methods on one recipe, each at several epsilons and seeds; one table and one figure."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args

import msgspec
import typer

from dpzv.errors import ConfigError
from dpzv.terms import Accounting, MethodName
from dpzv.validate import one_of, positive

if TYPE_CHECKING:
    from dpzv.config import Config, Tree
    from dpzv.report.records import Record
    from dpzv.runtime.compute_cost import Compute
    from dpzv.runtime.grid import Failure, Job, State, Watch

__all__ = ["Executed", "compare", "execute", "fail", "methods_of", "numbers_of"]

Recipe = Annotated[str, typer.Argument(help="A shipped recipe's name, or a TOML file.")]
Sets = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one key of all runs; repeatable.",
        default_factory=list,
        show_default=False,
    ),
]
Methods = Annotated[str, typer.Option("--methods", help="Methods, separated by commas.")]
Account = Annotated[Accounting, typer.Option("--accounting", help="The published noise rule, or a guarantee.")]
Settings = Annotated[
    Path | None, typer.Option("--settings", help="What each method changes in the recipe; default: as shipped.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0: as cores and memory allow.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no table; errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON and nothing else.")]

ALL = ",".join(get_args(MethodName))


@dataclass(frozen=True, slots=True)
class Executed:
    """What came of a grid of runs: the jobs, the figures they were charged by, and those that failed."""

    jobs: list[Job]
    compute: Compute
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A run of the comparison; `epsilon` is `None` for untrained devices."""

    method: str
    epsilon: float | None
    seed: int
    config: Config

    @property
    def name(self) -> str:
        """The name of its run, without the hash."""
        return f"{self.method}{'' if self.epsilon is None else f'-eps{self.epsilon:g}'}-seed{self.seed}"


def compare(
    recipe: Recipe,
    set_: Sets,
    methods: Methods = ALL,
    epsilon: Annotated[str, typer.Option("--epsilon", help="Numbers or inf, separated by commas.")] = "1",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, with train.seed 0, 1, ...")] = 3,
    accounting: Account = "exact",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder; default runs/compare-RECIPE.")] = None,
    jobs: Jobs = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on a recipe, beside untrained devices; runs that are finished are not run again.

    Example: dpzv compare digits --methods dpzv,vafl --epsilon 1,5 --seeds 2
    """
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.runtime.grid import layered

    tree = recipes.tree(recipe)
    chosen = recipes.settings(recipe, accounting, settings)
    changes = [*map(configuration.set_key, set_), {"privacy": {"accounting": accounting}}]
    names, epsilons = methods_of(methods), numbers_of("--epsilon", epsilon)
    cells = _cells(tree, chosen, changes, names, epsilons, seeds)
    folder = out or Path("runs") / f"compare-{Path(recipe).stem}"
    base = configuration.parse(layered(tree, {}, "", [*changes, {"train": {"method": "dpzv"}}]))
    executed = execute({cell.name: cell.config for cell in cells}, base, folder, jobs, quiet=quiet or json)
    records = _records(cells, executed, folder)
    if records:
        _report(recipe, accounting, cells, records, executed, seeds, folder, quiet=quiet, json=json)
    fail(executed.failures)


def execute(configs: dict[str, Config], base: Config, folder: Path, jobs: int, *, quiet: bool) -> Executed:
    """Measure, then run all configurations by name under one progress bar; ends with 130 if interrupted."""
    from dpzv.runtime import compute_cost, grid

    with _watching(quiet) as watch:
        prepared = compute_cost.prepare(configs, base, folder, jobs, watch)
        if prepared is None:
            _interrupted()
        made, compute, at_once = prepared
        failures = grid.run(made, folder, at_once, watch)
    if failures is None:
        _interrupted()
    return Executed(made, compute, failures)


def methods_of(text: str) -> list[str]:
    """The methods of an option, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--methods expects names separated by commas, got '{text}'; e.g. --methods dpzv,vafl.")
    return [one_of("the method", name, get_args(MethodName)) for name in names]


def numbers_of(option: str, text: str) -> list[float]:
    """The positive numbers of an option, each once."""
    try:
        numbers = list(dict.fromkeys(float(word) for word in text.split(",")))
    except ValueError:
        raise ConfigError(f"{option} expects numbers separated by commas, got '{text}'; e.g. {option} 0.5,1.") from None
    return [positive(option, number) for number in numbers]


def fail(failures: Sequence[Failure]) -> None:
    """Say which runs failed and why, and end with the exit code of the first; do nothing if there are none."""
    for failure in failures:
        typer.echo(f"dpzv: {failure.name} failed: {failure.sentence}", err=True)
    if failures:
        raise typer.Exit(failures[0].code)


def _cells(
    tree: Tree, settings: dict[str, Any], changes: list[Tree], methods: list[str], epsilons: list[float], seeds: int
) -> list[_Cell]:
    """Untrained devices first, then every method at every epsilon, each with every seed."""
    from dpzv import config as configuration
    from dpzv.report.records import FROZEN
    from dpzv.runtime.grid import layered

    cells = []
    for seed in range(seeds):
        # a private start pays from the budget even if nothing is trained: it gets the smallest one
        last = {"train": {"rounds": 0, "seed": seed}, "head": {"rule": "frozen"}, "privacy": {"epsilon": min(epsilons)}}
        config = configuration.parse(layered(tree, settings, FROZEN, [*changes, last]))
        cells.append(_Cell(FROZEN, None, seed, config))
    for method in methods:
        for epsilon in epsilons:
            for seed in range(seeds):
                last = {"train": {"method": method, "seed": seed}, "privacy": {"epsilon": epsilon}}
                config = configuration.parse(layered(tree, settings, method, [*changes, last]))
                cells.append(_Cell(method, epsilon, seed, config))
    return cells


def _records(cells: list[_Cell], executed: Executed, folder: Path) -> list[Record]:
    """The records of all finished runs."""
    from dpzv.report.records import read

    records = []
    for cell, job in zip(cells, executed.jobs, strict=True):
        place = folder / "runs" / job.key
        if (place / "summary.json").exists():
            record = read(place, cell.method, _shown(cell), cell.seed)
            if cell.epsilon is None:  # what untrained devices cost, if their start is private
                record = dataclasses.replace(record, epsilon=record.summary["epsilon"])
            records.append(record)
    return records


def _shown(cell: _Cell) -> float | None:
    return None if cell.epsilon is None or math.isinf(cell.epsilon) else cell.epsilon


def _report(
    recipe: str,
    accounting: str,
    cells: list[_Cell],
    records: list[Record],
    executed: Executed,
    seeds: int,
    folder: Path,
    *,
    quiet: bool,
    json: bool,
) -> None:
    """Write table.json, table.md and figure.png, and print the table."""
    from dpzv.durable import write_atomically
    from dpzv.report import comparison_table, figure

    trained = [cell for cell in cells if cell.epsilon is not None]
    train = trained[0].config.train
    target = max(train.target, default=None)
    compute = {cell.method: executed.compute.cost(cell.config).factor for cell in trained}
    made = comparison_table.rows(records, target, compute)
    above = comparison_table.ahead(made)
    below = comparison_table.footnotes(made, seeds, train.eval_every)
    outcome = {"schema": 1, "recipe": recipe, "accounting": accounting, "ahead": above, "rows": made, "notes": below}
    text = msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n"
    write_atomically(folder / "table.json", text)
    write_atomically(folder / "table.md", comparison_table.markdown(made, above, below).encode())
    figure.draw(records, target, f"{Path(recipe).stem}, {accounting} accounting", folder / "figure.png")
    if json:
        sys.stdout.write(text.decode())
    elif not quiet:
        _show(made, above, below, folder)


def _show(made: Sequence[Any], above: list[str], below: list[str], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpzv.report import comparison_table

    console = Console()
    for line in above:
        console.print(line, style="bold", highlight=False, markup=False, soft_wrap=True)
    if above:
        console.print()
    if console.is_terminal:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for name in comparison_table.header(made):
            shown.add_column(name, justify="left" if name in ("method", "guarantee") else "right")
        for row in made:
            shown.add_row(*comparison_table.cells(row))
        console.print(shown)
    else:
        sys.stdout.write(comparison_table.plain(made) + "\n")
    console.print()
    for line in [*below, f"Table and figure: {folder}"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _interrupted() -> NoReturn:
    typer.echo(
        "dpzv: interrupted; finished runs are kept and the others go on where they were: give the same command again.",
        err=True,
    )
    raise typer.Exit(130)


@contextmanager
def _watching(quiet: bool) -> Iterator[Watch]:
    """A watch with one bar over all runs that asks them to stop on Ctrl-C or SIGTERM."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        if stopped:  # a second Ctrl-C does not wait for the children's checkpoints
            raise KeyboardInterrupt
        stopped = True

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[figures]}"))
    bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet)
    task = bar.add_task("starting", total=None, figures="")

    def watch(state: State) -> bool:
        figures = f"round {state.rounds}/{state.rounds_total}, {state.runs} of {state.runs_total} runs"
        figures += f", {state.failed} failed" if state.failed else ""
        bar.update(
            task,
            description="stopping" if stopped else state.stage,
            total=state.rounds_total or None,
            completed=state.rounds,
            figures=figures if state.runs_total else "",
        )
        return not stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with bar:
            yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
