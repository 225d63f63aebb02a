"""What `dpzv reproduce` runs: items of the paper become cells, cells become jobs with configurations of their own.

An item is a file in ``recipes/reproduce``: for some workloads the rows, budgets, seeds and cases that it shows. A cell
is one of its runs. Runs of several items that have the same configuration are one run, found by its hash.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config, RuntimeSection, Tree
from dpzv.data import catalogue
from dpzv.privacy.gdp import mu_of
from dpzv.runtime.fused_kinds import fused_if_possible
from dpzv.runtime.grid import Job, layered
from dpzv.runtime.reproduction_files import (
    LENGTH,
    TUNING,
    Case,
    Item,
    RowKind,
    Runs,
    Tuned,
    Workload,
    item_of,
    row_kinds,
    shipped,
    workloads,
)
from dpzv.runtime.run_plan import sizes_of
from dpzv.runtime.search import draw, space_of, tree_of
from dpzv.validate import converted

__all__ = ["SMOKE", "Asked", "Cell", "cells_of", "ordered"]

SMOKE = "smoke"
SMOKE_EPSILONS = (1.0, 10.0)
"""At --scale smoke these take the place of an item's budgets: one of them, or both if the item has several."""

LENGTHS = ("train.passes", "train.rounds", "train.eval_every", "train.B", "head.steps", "head.batch")
"""The keys by which items set the length of their runs; --scale smoke ignores them."""

STEP = "head.eta_0"
"""The one key of a row that trials and items may change; all other keys that make a row are fixed."""

POINTS = 20
"""If trials chose the length of a run, its curve has at least so many points."""

EVERY: Tree = {"noise": {"source": "seeded"}, "runtime": {"threads": 1}}
"""What all runs have: noise that can be repeated, and one thread, so that a run's hash is the same on every machine."""

MEASURED = "memory"
"""The row whose figures are about the machine; every other row's runs count wherever they were computed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for: the scale, the folder, changes of all runs, and where workloads' own files lie."""

    scale: str
    out: Path
    changes: tuple[Tree, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of an item; `missing` says why it cannot be run.

    `trials` is the number of trials that chose its settings: 0 if nobody tuned them, `None` if there is nothing to
    choose.
    """

    workload: str
    row: str
    kind: RowKind
    accounting: str
    epsilon: float
    seed: int
    case: Case
    trials: int | None
    job: Job
    seconds: float
    missing: str = ""
    setting: dict[str, Any] | None = None  # of a trial: what was drawn for it


def cells_of(item: Item, asked: Asked) -> list[Cell]:
    """The runs of an item."""
    kinds = row_kinds()
    found: list[Cell] = []
    for runs in item.runs:
        runs = _smoke(runs) if asked.scale == SMOKE else runs
        for row in runs.rows:
            own = msgspec.structs.replace(runs, seeds=1, set={}, cases=(Case(),)) if kinds[row].alike else runs
            for epsilon, case, seed in itertools.product(own.epsilon, own.cases, range(own.seeds)):
                made = _Made(own, row, kinds[row], epsilon, case, seed)
                if trials := item.options.get("trials"):
                    found += _trials(made, 1 if asked.scale == SMOKE else trials, asked)
                else:
                    found.append(_cell(made, asked))
    places: dict[tuple[Any, ...], Cell] = {}
    for cell in found:  # in a smoke test the cells of several workloads are the same ones
        place = (cell.workload, cell.row, cell.accounting, cell.epsilon, cell.case.name, cell.seed)
        places.setdefault(place, cell)
    return list(places.values())


def ordered(items: Mapping[str, Iterable[Cell]]) -> list[Cell]:
    """The cells of several items, each run once; those come first that are worth most for each second they take.

    A run is worth its share of every item it belongs to.
    """
    worth: dict[str, float] = {}
    by_key: dict[str, Cell] = {}
    for name, cells in items.items():
        alive = {cell.job.key: cell for cell in cells if not cell.missing}
        by_key |= alive
        for key in alive:
            worth[key] = worth.get(key, 0.0) + item_of(name).value / len(alive)
    return sorted(by_key.values(), key=lambda cell: -worth[cell.job.key] / max(cell.seconds, 0.1))


@dataclass(frozen=True, slots=True)
class _Made:
    """A place in an item's grid, before it has a configuration."""

    runs: Runs
    row: str
    kind: RowKind
    epsilon: float
    case: Case
    seed: int


def _smoke(runs: Runs) -> Runs:
    """The same runs on the smallest workload, with one seed, few budgets and the smoke's own lengths."""
    kept = {key: value for key, value in runs.set.items() if key not in LENGTHS and not key.startswith("devices.")}
    budgets = SMOKE_EPSILONS[: min(2, len(runs.epsilon))]
    epsilons = budgets if all(map(math.isfinite, runs.epsilon)) else (math.inf, *budgets[1:])
    rows = tuple(row for row in runs.rows if row != "public")  # its filter bank needs images
    return Runs(SMOKE, rows, runs.accounting, epsilons, 1, kept, tuple(map(_smoke_case, runs.cases[:3])))


def _smoke_case(case: Case) -> Case:
    """The same case for fewer devices: of a list the last values stay."""
    devices = workloads()[SMOKE].devices
    cut = {key: value[-devices:] if isinstance(value, list) else value for key, value in case.set.items()}
    return Case(case.name, case.x, cut)


def _trials(made: _Made, trials: int, asked: Asked) -> Iterator[Cell]:
    """The trials of one row, drawn from its lists of values."""
    space = space_of(recipes.reproduction("spaces")[made.runs.accounting], made.row)
    space |= {key: values for key, values in made.runs.space.items() if key in space}
    for number, setting in enumerate(draw(space, trials, made.row), 1):
        if asked.scale == SMOKE:
            setting = {key: value for key, value in setting.items() if key not in LENGTHS}
        case = Case(f"trial {number}", number, {**made.case.set, **setting})
        cell = _cell(_Made(made.runs, made.row, made.kind, made.epsilon, case, made.seed), asked)
        yield replace(cell, setting=setting)


def _cell(made: _Made, asked: Asked) -> Cell:
    runs, workload = made.runs, workloads()[made.runs.workload]
    tree = recipes.tree(workload.like)
    tuned = _tuned(made, asked.out)
    own, kind = asked.data.get(runs.workload, ""), {**made.kind.set, **getattr(made.kind, runs.accounting)}
    decided = {key: value for key, value in kind.items() if key != STEP}
    steps = workload.paper if runs.accounting == "paper" else {}
    changes: list[Tree] = [
        EVERY,
        {"privacy": {"accounting": runs.accounting}, "train": {"target": [workload.target]}},
        *(tree_of(part) for part in (workload.set, steps, kind, tuned.settings, runs.set, made.case.set, decided)),
        *([{"data": {"path": own}}] if own else []),
        *asked.changes,
        {"train": {"method": made.kind.method, "seed": made.seed}},
        {"privacy": {"epsilon": decided.get("privacy.epsilon", made.epsilon)}},
    ]
    config, rounds = _configured(tree, made, changes, None if "train.rounds" in kind else tuned)
    name = f"{runs.workload}-{runs.accounting}-{made.row}-eps{config.privacy.epsilon:g}-seed{made.seed}"
    return Cell(
        workload=runs.workload,
        row=made.row,
        kind=made.kind,
        accounting=runs.accounting,
        epsilon=made.epsilon,
        seed=made.seed,
        case=made.case,
        trials=tuned.trials if made.kind.tuned or made.kind.like else None,
        job=Job(name, config, rounds, made.kind.program, config if made.row == MEASURED else _anywhere(config)),
        seconds=made.kind.slower * _seconds(config, workload, rounds),
        missing="" if made.row == MEASURED else _missing(config.data.name, own or config.data.path),
    )


def _anywhere(config: Config) -> Config:
    """The same run on a CPU with one thread, by which it is found wherever it is computed."""
    return msgspec.structs.replace(config, runtime=RuntimeSection(threads=1))


def _configured(tree: Tree, made: _Made, changes: list[Tree], tuned: Tuned | None) -> tuple[Config, int]:
    """A run's configuration and its rounds; a length that trials chose counts for items that have a length.

    On an accelerator rounds are fused where they can be.
    """
    workload, general = workloads()[made.runs.workload], recipes.settings("", made.runs.accounting)

    def parsed(*more: Tree) -> tuple[Config, int]:
        config = configuration.parse(layered(tree, general, made.kind.method, [*changes, *more]))
        return config, sizes_of(config, workload.records, workload.devices).T

    config, rounds = parsed()
    if tuned is not None and tuned.passes and LENGTH in made.runs.set:
        times = _longer(made.epsilon, tuned, config) if made.runs.longer else 1.0
        own = {"passes": min(made.runs.set[LENGTH], tuned.passes * times)}
        config, rounds = parsed({"train": own})
        if rounds < POINTS * config.train.eval_every:
            config, rounds = parsed({"train": {**own, "eval_every": max(1, rounds // POINTS)}})
    if config.runtime.accelerator == "cuda":
        config = msgspec.structs.replace(config, runtime=msgspec.structs.replace(config.runtime, kind="fused"))
    return fused_if_possible(config, rounds=not made.kind.program), rounds


def _longer(epsilon: float, tuned: Tuned, config: Config) -> float:
    """How many times as long as in its trials a run is: the noise stays as it was there, but no run is shorter."""
    mu, at = (mu_of(budget, config.privacy.delta_dp) for budget in (epsilon, tuned.epsilon))
    return max(1.0, (mu / at) ** 2)


def _tuned(made: _Made, out: Path) -> Tuned:
    """What the trials of a row chose; nothing for runs that are trials themselves, which have a holdout.

    It is read from the folder of this reproduction, or else from the shipped files.
    """
    row = made.kind.like or (made.row if made.kind.tuned else "")
    if "data.holdout" in made.runs.set or not row:
        return Tuned()
    name = f"{made.runs.workload}-{made.runs.accounting}"
    file = out / TUNING / f"{name}.toml"
    found = recipes.toml_file(file) if file.exists() else shipped(name)
    return converted(found.get(row, {}), Tuned).without_length()


def _seconds(config: Config, workload: Workload, rounds: int) -> float:
    """An estimate of how long a run takes: an evaluation counts as 30 rounds, the start and the end as 200."""
    each = workload.cuda if config.runtime.accelerator == "cuda" else workload.cpu
    return each * (rounds * ((config.train.directions + 1) / 2 + 30 / config.train.eval_every) + 200)


def _missing(name: str, path: str) -> str:
    """Why a run cannot begin: its records are not here."""
    if name not in catalogue.names():
        return f"not run: there is no data set {name}"
    return "" if catalogue.describe(name, path or None).present else "not run: its records are not here"
