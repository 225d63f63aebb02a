"""`dpzv compare`: several methods on one recipe, each at several epsilons and seeds; one table and one figure."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv.cli import options

if TYPE_CHECKING:
    from dpzv.config import Config, Tree
    from dpzv.report.comparison_table import Record
    from dpzv.runtime.compute_cost import Compute
    from dpzv.runtime.grid import Failure, Job, State, Watch

__all__ = ["Executed", "compare", "execute", "fail"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The options of `dpzv compare`."""

    recipe: options.Recipe
    set_: options.SetsOfAll
    methods: options.Methods = options.ALL
    epsilon: Annotated[str, typer.Option("--epsilon", help="Numbers or inf, separated by commas.")] = "1"
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, with train.seed 0, 1, ...")] = 3
    accounting: options.Account = "exact"
    settings: options.Settings = None
    out: Annotated[Path | None, typer.Option("--out", help="The folder; default runs/compare-RECIPE.")] = None
    jobs: options.Jobs = 0
    json: options.JsonOutcome = False
    quiet: options.Quiet = False


@dataclass(frozen=True, slots=True)
class Executed:
    """The outcome of a grid of runs: the jobs, what the virtual clock charged them, and those that failed."""

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


@options.with_options(Comparison)
def compare(asked: Comparison) -> None:
    """Compare methods on a recipe, beside untrained devices; runs that are finished are not run again.

    Example: dpzv compare digits --methods dpzv,vafl --epsilon 1,5 --seeds 2
    """
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.runtime.grid import layered

    tree = recipes.tree(asked.recipe)
    changes = [*map(configuration.set_key, asked.set_), {"privacy": {"accounting": asked.accounting}}]
    cells = _cells(asked, tree, changes)
    folder = asked.out or Path("runs") / f"compare-{Path(asked.recipe).stem}"
    base = configuration.parse(layered(tree, {}, "", [*changes, {"train": {"method": "dpzv"}}]))
    quiet = asked.quiet or asked.json
    executed = execute({cell.name: cell.config for cell in cells}, base, folder, asked.jobs, quiet=quiet)
    records = _records(cells, executed, folder)
    if records:
        _report(asked, cells, records, executed.compute, folder)
    fail(executed.failures)


def execute(configs: dict[str, Config], base: Config, folder: Path, jobs: int, *, quiet: bool) -> Executed:
    """Measure, then run all configurations by name under one progress bar; ends with 130 if interrupted."""
    from dpzv.runtime import compute_cost, grid

    with _watching(quiet) as watch:
        prepared = compute_cost.prepare(configs, base, folder, jobs, watch)
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
    """Say which runs failed and why, and end with the exit code of the first; do nothing if there are none."""
    for failure in failures:
        typer.echo(f"dpzv: {failure.name} failed: {failure.sentence}", err=True)
    if failures:
        raise typer.Exit(failures[0].code)


def _cells(asked: Comparison, tree: Tree, changes: list[Tree]) -> list[_Cell]:
    """Untrained devices first, then every method at every epsilon, each with every seed."""
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.report.comparison_table import FROZEN
    from dpzv.runtime.grid import layered

    settings = recipes.settings(asked.recipe, asked.accounting, asked.settings)
    methods, epsilons = options.methods_of(asked.methods), options.numbers_of("--epsilon", asked.epsilon)
    # a private start pays from the budget even if nothing is trained: it gets the smallest budget
    frozen = {"train": {"rounds": 0}, "head": {"rule": "frozen"}, "privacy": {"epsilon": min(epsilons)}}
    lasts: list[tuple[str, float | None, Tree]] = [(FROZEN, None, frozen)]
    for method, epsilon in itertools.product(methods, epsilons):
        lasts.append((method, epsilon, {"train": {"method": method}, "privacy": {"epsilon": epsilon}}))
    cells = []
    for (name, spent, last), seed in itertools.product(lasts, range(asked.seeds)):
        made = layered(tree, settings, name, [*changes, last, {"train": {"seed": seed}}])
        cells.append(_Cell(name, spent, seed, configuration.parse(made)))
    return cells


def _records(cells: list[_Cell], executed: Executed, folder: Path) -> list[Record]:
    """The records of all finished runs."""
    from dpzv.report.comparison_table import read

    runs = [(cell, folder / "runs" / job.key) for cell, job in zip(cells, executed.jobs, strict=True)]
    finished = [(cell, place) for cell, place in runs if (place / "summary.json").exists()]
    return [read(place, cell.method, cell.epsilon, cell.seed) for cell, place in finished]


def _report(asked: Comparison, cells: list[_Cell], records: list[Record], compute: Compute, folder: Path) -> None:
    """Write table.json, table.md and figure.png, and print the table."""
    from dpzv.cli.show import json_text
    from dpzv.durable import write_atomically
    from dpzv.report import comparison_table, figure

    trained = [cell for cell in cells if cell.epsilon is not None]
    train = trained[0].config.train
    target = max(train.target, default=None)
    factors = {cell.method: compute.cost(cell.config).factor for cell in trained}
    made = comparison_table.rows(records, target, factors)
    above = comparison_table.ahead(made)
    below = comparison_table.notes(made, asked.seeds, train.eval_every)
    said = {"schema": 1, "recipe": asked.recipe, "accounting": asked.accounting}
    text = json_text({**said, "ahead": above, "rows": made, "notes": below})
    write_atomically(folder / "table.json", text.encode())
    write_atomically(folder / "table.md", comparison_table.markdown(made, above, below).encode())
    figure.draw(records, target, f"{Path(asked.recipe).stem}, {asked.accounting} accounting", folder / "figure.png")
    if asked.json:
        sys.stdout.write(text)
    elif not asked.quiet:
        _show(made, above, below, folder)


def _show(made: Sequence[Any], above: list[str], below: list[str], folder: Path) -> None:
    from rich.console import Console

    from dpzv.cli.show import columns
    from dpzv.report import comparison_table

    console = Console()
    for line in above:
        console.print(line, style="bold", highlight=False, markup=False, soft_wrap=True)
    if above:
        console.print()
    header, rows = comparison_table.header(made), [comparison_table.cells(row) for row in made]
    if console.is_terminal:
        console.print(columns(header, rows, left=("method", "guarantee")))
    else:
        sys.stdout.write(comparison_table.columned([header, *rows]) + "\n")
    console.print()
    for line in [*below, f"Table and figure: {folder}"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _watching(quiet: bool) -> Iterator[Watch]:
    """A watch with one bar over all runs that asks them to stop on Ctrl-C or SIGTERM."""
    from dpzv.cli.show import progress_bar, stop_asked

    bar = progress_bar(quiet)
    task = bar.add_task("starting", total=None, figures="")
    with stop_asked() as stopped, bar:

        def watch(state: State) -> bool:
            failed = f", {state.failed} failed" if state.failed else ""
            figures = f"round {state.rounds}/{state.rounds_total}, {state.runs} of {state.runs_total} runs{failed}"
            bar.update(
                task,
                description="stopping" if stopped() else state.stage,
                total=state.rounds_total or None,
                completed=state.rounds,
                figures=figures if state.runs_total else "",
            )
            return not stopped()

        yield watch
