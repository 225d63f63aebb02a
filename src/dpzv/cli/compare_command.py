"""`dpzv compare`: methods on one recipe, or widths of its embeddings, at several epsilons and seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpzv.cli import options
from dpzv.cli.many_runs import Executed, Told, execute, fail, tell
from dpzv.declarations import OURS
from dpzv.errors import ConfigError

if TYPE_CHECKING:
    from dpzv.config import Config, Tree
    from dpzv.report.comparison import Record
    from dpzv.report.widths import Measured
    from dpzv.runtime.compute_cost import Compute

__all__ = ["compare"]

INFINITE = float("inf")


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
    if asked.widths:
        _compare_widths(asked)
        return
    from dpzv import config as configuration
    from dpzv.runtime import compute_cost
    from dpzv.runtime.grid import layered

    tree = options.tree_of(asked.recipe, [])
    changes = [*map(configuration.set_key, asked.set_), {"privacy": {"accounting": asked.accounting}}]
    cells = _method_cells(asked, tree, changes)
    folder = asked.out or Path("runs") / f"compare-{asked.name}"
    base = configuration.parse(layered(tree, {}, "", [*changes, {"train": {"method": OURS}}]))
    configs = {cell.name: cell.config for cell in cells}
    prepare = partial(compute_cost.prepare, configs, base, folder, asked.jobs)
    executed = execute(prepare, folder, quiet=asked.quiet or asked.json)
    records = _records(cells, executed, folder)
    if records:
        _report_methods(asked, cells, records, executed.compute, folder)
    fail(executed.failures)


def _method_cells(asked: options.Comparison, tree: Tree, changes: list[Tree]) -> list[_Cell]:
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


def _report_methods(
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


@dataclass(frozen=True, slots=True)
class _WidthCell:
    """A run at one width: what is trained in it, the `party` if it is alone, and what it may spend."""

    kind: str
    party: str
    width: int
    epsilon: float
    seed: int
    config: Config

    @property
    def name(self) -> str:
        """The name of its run, without the hash."""
        what = f"alone{self.config.data.devices[0]}" if self.party else self.kind
        spends = "" if self.kind in ("untrained", "backpropagation") else f"-eps{self.epsilon:g}"
        return f"{what}-width{self.width}{spends}-seed{self.seed}"


def _compare_widths(asked: options.Comparison) -> None:
    """Run one method at every width, beside what it is compared with, and tell what training it bought."""
    from dpzv.report.run_records import read_outcome
    from dpzv.report.widths import BACKPROPAGATION, TRAINED, Measured
    from dpzv.runtime import compute_cost

    if asked.methods != options.ALL:
        raise ConfigError(
            f"--widths compares widths of one method, train.method of the recipe, got --methods {asked.methods}; "
            "leave --methods out, or change the method by --set train.method=NAME."
        )
    cells = list(_width_cells(asked))
    folder = asked.out or Path("runs") / f"widths-{asked.name}"
    configs = {cell.name: cell.config for cell in cells}
    ceilings = {cell.name for cell in cells if cell.kind == BACKPROPAGATION}
    trained = [cell.config for cell in cells if cell.kind == TRAINED]
    if any(config.train.rounds == 0 for config in trained):
        raise ConfigError(
            "--widths shows what training buys, so train.rounds must be at least 1, got 0; leave it out, since "
            "untrained devices have rows of their own."
        )
    prepare = partial(compute_cost.prepare_alike, configs, ceilings, trained[-1], folder, asked.jobs)
    executed = execute(prepare, folder, quiet=asked.quiet or asked.json)
    places = [folder / "runs" / job.key for job in executed.jobs]
    measured = [
        Measured(cell.kind, cell.party, cell.width, cell.epsilon, cell.seed, summary)
        for cell, (summary, _) in zip(cells, map(read_outcome, places), strict=True)
        if summary is not None
    ]
    if measured:
        _report_widths(asked, measured, folder)
    fail(executed.failures)


def _width_cells(asked: options.Comparison) -> Iterator[_WidthCell]:
    """At every width, each with every seed: untrained, trained at every epsilon and without noise, the ceiling, alone.

    A private start pays from the budget even if nothing is trained: untrained devices get the smallest budget.
    """
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.report.widths import ALONE, BACKPROPAGATION, TRAINED, UNTRAINED
    from dpzv.runtime import baselines
    from dpzv.runtime.grid import layered

    tree, widths = options.tree_of(asked.recipe, []), options.widths_of(asked.widths)
    changes = [*map(configuration.set_key, asked.set_), {"privacy": {"accounting": asked.accounting}}]
    method = configuration.parse(layered(tree, {}, "", changes)).train.method
    settings = recipes.settings(asked.recipe[0], asked.accounting, asked.settings)
    epsilons = options.epsilons_of(asked.epsilon)
    kinds = [(UNTRAINED, min(epsilons))]
    kinds += [(TRAINED, epsilon) for epsilon in dict.fromkeys([*epsilons, INFINITE])]
    kinds += [(BACKPROPAGATION, INFINITE), (ALONE, epsilons[0])]
    for width, (kind, epsilon), seed in itertools.product(widths, kinds, range(asked.seeds)):
        last = {"devices": {"embedding": width}, "train": {"seed": seed}, "privacy": {"epsilon": epsilon}}
        still = [baselines.UNTRAINED] if kind in (UNTRAINED, BACKPROPAGATION) else []
        config = configuration.parse(layered(tree, settings, method, [*changes, last, *still]))
        if kind != ALONE:
            yield _WidthCell(kind, "", width, epsilon, seed, config)
            continue
        for m, party in baselines.parties(config).items():
            yield _WidthCell(kind, party, width, epsilon, seed, baselines.alone(config, m))


def _report_widths(asked: options.Comparison, measured: list[Measured], folder: Path) -> None:
    """Write table.json, table.md and figure.svg, and print the table."""
    from dpzv.report import widths

    made = widths.rows(measured)
    below = widths.notes(made, asked.seeds)
    widths.draw(made, f"{asked.name}, {asked.accounting} accounting", folder / "figure.svg")
    told = Told(widths.header(made), [widths.cells(row) for row in made], [], below)
    tell(asked, told, {"rows": made, "notes": below}, folder)
