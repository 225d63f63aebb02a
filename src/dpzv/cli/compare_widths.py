"""`dpzv compare --widths`: what training the devices buys, at each width of their embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpzv.cli import options
from dpzv.cli.many_runs import Told, execute, fail, tell
from dpzv.errors import ConfigError

if TYPE_CHECKING:
    from dpzv.config import Config
    from dpzv.report.widths import Measured

__all__ = ["compare_widths"]

INFINITE = float("inf")


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


def compare_widths(asked: options.Comparison) -> None:
    """Run one method at every width, beside what it is compared with, and tell what training it bought."""
    from dpzv.report.run_records import read_outcome
    from dpzv.report.widths import BACKPROPAGATION, Measured
    from dpzv.runtime import compute_cost

    if asked.methods != options.ALL:
        raise ConfigError(
            f"--widths compares widths of one method, train.method of the recipe, got --methods {asked.methods}; "
            "leave --methods out, or change the method by --set train.method=NAME."
        )
    cells = list(_cells(asked))
    folder = asked.out or Path("runs") / f"widths-{asked.name}"
    configs = {cell.name: cell.config for cell in cells}
    ceilings = {cell.name for cell in cells if cell.kind == BACKPROPAGATION}
    base = next(cell.config for cell in reversed(cells) if not cell.party and cell.config.train.rounds != 0)
    prepare = partial(compute_cost.prepare_alike, configs, ceilings, base, folder, asked.jobs)
    executed = execute(prepare, folder, quiet=asked.quiet or asked.json)
    places = [folder / "runs" / job.key for job in executed.jobs]
    measured = [
        Measured(cell.kind, cell.party, cell.width, cell.epsilon, cell.seed, summary)
        for cell, (summary, _) in zip(cells, map(read_outcome, places), strict=True)
        if summary is not None
    ]
    if measured:
        _report(asked, measured, folder)
    fail(executed.failures)


def _cells(asked: options.Comparison) -> Iterator[_WidthCell]:
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


def _report(asked: options.Comparison, measured: list[Measured], folder: Path) -> None:
    """Write table.json, table.md and figure.svg, and print the table."""
    from dpzv.report import widths

    made = widths.rows(measured)
    below = widths.notes(made, asked.seeds)
    widths.draw(made, f"{asked.name}, {asked.accounting} accounting", folder / "figure.svg")
    told = Told(widths.header(made), [widths.cells(row) for row in made], [], below)
    tell(asked, told, {"rows": made, "notes": below}, folder)
