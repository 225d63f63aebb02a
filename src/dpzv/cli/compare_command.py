"""`dpzv compare`: several methods on one recipe, each at several epsilons and seeds; one table and one figure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpzv.cli import options
from dpzv.cli.many_runs import Executed, Told, execute, fail, tell

if TYPE_CHECKING:
    from dpzv.config import Config, Tree
    from dpzv.report.comparison import Record
    from dpzv.runtime.compute_cost import Compute

__all__ = ["compare"]


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


@options.with_options(options.Comparison)
def compare(asked: options.Comparison) -> None:
    """Compare methods on a recipe, beside untrained devices; runs that are finished are not run again.

    With --widths, show what training one method buys at each width of the embeddings.

    Example: dpzv compare digits --methods dpzv,vafl --epsilon 1,5 --seeds 2
    """
    from dpzv import config as configuration
    from dpzv.runtime import compute_cost
    from dpzv.runtime.grid import layered

    if asked.widths:
        from dpzv.cli.compare_widths import compare_widths

        compare_widths(asked)
        return
    tree = options.tree_of(asked.recipe, [])
    changes = [*map(configuration.set_key, asked.set_), {"privacy": {"accounting": asked.accounting}}]
    cells = _cells(asked, tree, changes)
    folder = asked.out or Path("runs") / f"compare-{asked.name}"
    base = configuration.parse(layered(tree, {}, "", [*changes, {"train": {"method": "dpzv"}}]))
    configs = {cell.name: cell.config for cell in cells}
    prepare = partial(compute_cost.prepare, configs, base, folder, asked.jobs)
    executed = execute(prepare, folder, quiet=asked.quiet or asked.json)
    records = _records(cells, executed, folder)
    if records:
        _report(asked, cells, records, executed.compute, folder)
    fail(executed.failures)


def _cells(asked: options.Comparison, tree: Tree, changes: list[Tree]) -> list[_Cell]:
    """Untrained devices first, then every method at every epsilon, each with every seed."""
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.report.comparison import UNTRAINED as NAME
    from dpzv.runtime.baselines import UNTRAINED
    from dpzv.runtime.grid import layered

    settings = recipes.settings(asked.recipe[0], asked.accounting, asked.settings)
    methods, epsilons = options.methods_of(asked.methods), options.epsilons_of(asked.epsilon)
    # a private start pays from the budget even if nothing is trained: it gets the smallest budget
    frozen = {**UNTRAINED, "privacy": {"epsilon": min(epsilons)}}
    lasts: list[tuple[str, float | None, Tree]] = [(NAME, None, frozen)]
    for method, epsilon in itertools.product(methods, epsilons):
        lasts.append((method, epsilon, {"train": {"method": method}, "privacy": {"epsilon": epsilon}}))
    cells = []
    for (name, spent, last), seed in itertools.product(lasts, range(asked.seeds)):
        made = layered(tree, settings, name, [*changes, last, {"train": {"seed": seed}}])
        cells.append(_Cell(name, spent, seed, configuration.parse(made)))
    return cells


def _records(cells: list[_Cell], executed: Executed, folder: Path) -> list[Record]:
    """The records of all finished runs."""
    from dpzv.report.comparison import read

    runs = [(cell, folder / "runs" / job.key) for cell, job in zip(cells, executed.jobs, strict=True)]
    finished = [(cell, place) for cell, place in runs if (place / "summary.json").exists()]
    return [read(place, cell.method, cell.epsilon, cell.seed) for cell, place in finished]


def _report(
    asked: options.Comparison, cells: list[_Cell], records: list[Record], compute: Compute, folder: Path
) -> None:
    """Write table.json, table.md and figure.svg, and print the table."""
    from dpzv import recipes
    from dpzv.report import comparison

    trained = [cell for cell in cells if cell.epsilon is not None]
    train = trained[0].config.train
    target = max(train.target, default=None)
    factors = {cell.method: compute.cost(cell.config).factor for cell in trained}
    trials = recipes.trials(asked.recipe[0], asked.accounting, asked.settings)
    made = comparison.rows(records, target, factors, trials)
    above = comparison.ahead(made)
    below = [*comparison.untuned(made, asked.name), *comparison.notes(made, asked.seeds, train.eval_every)]
    words = [comparison.cells(row) for row in made]
    comparison.draw(records, target, f"{asked.name}, {asked.accounting} accounting", folder / "figure.svg")
    values = {"ahead": above, "rows": made, "notes": below}
    tell(asked, Told(comparison.header(made), words, above, below), values, folder)
