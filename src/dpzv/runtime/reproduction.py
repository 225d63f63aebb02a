"""What `dpzv reproduce` runs: items of the paper become cells, cells become jobs with configurations of their own.

An item is a file in ``recipes/reproduce``: for some workloads the rows, budgets, seeds and cases that it shows. A cell
is one of its runs. Runs of several items that have the same configuration are one run, found by its hash.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config, Tree
from dpzv.data import catalogue
from dpzv.runtime.fused_kinds import fused_if_possible
from dpzv.runtime.grid import Job, layered
from dpzv.runtime.run_plan import sizes_of
from dpzv.runtime.search import draw, space_of, tree_of
from dpzv.validate import converted

__all__ = [
    "ITEMS",
    "SMOKE",
    "TUNING",
    "Asked",
    "Cell",
    "Item",
    "Workload",
    "cells_of",
    "item_of",
    "ordered",
    "workloads",
]

TUNING = "tuning"
ITEMS = (
    *("fig-convergence", "table-communication", "fig-tradeoff", "fig-memory", "fig-budget", "fig-clipping"),
    *("fig-clip-level", "fig-overview", "fig-honest", "fig-widths", "fig-delay", "fig-theory"),
)
"""The items by name, in the order of the page; the trials that come before them are an item of their own."""

SMOKE = "smoke"
SMOKE_EPSILONS = (1.0, 10.0)
"""At --scale smoke these take the place of an item's budgets: one of them, or both if the item has several."""

LENGTHS = ("train.passes", "train.rounds", "train.eval_every", "train.B", "head.steps", "head.batch")
"""What an item says about the length of its runs, which --scale smoke does not take."""

STEP = "head.eta_0"
"""The one key that a row only suggests: trials and items may change it, but nothing else that makes a row."""

EVERY: Tree = {"noise": {"source": "seeded"}, "runtime": {"threads": 1}}
"""What all runs have: noise that can be repeated, and one thread, so that a run's hash is the same on every machine."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variation of an item's runs: its name, its place on an axis, and the keys that it changes."""

    name: str = ""
    x: float | None = None
    set: dict[str, Any] = {}


class Runs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs of an item on one workload: every row at every budget, case and seed."""

    workload: str
    rows: tuple[str, ...]
    accounting: str = "paper"
    epsilon: tuple[float, ...] = (1.0,)
    seeds: int = 1
    set: dict[str, Any] = {}
    cases: tuple[Case, ...] = (Case(),)


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure or table: its runs, what they are worth, where the paper has it, and what is left out for its cost."""

    title: str
    value: float
    runs: tuple[Runs, ...]
    paper: str = ""
    left_out: tuple[str, ...] = ()
    options: dict[str, Any] = {}


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload: the recipe it changes, its target, sizes and seconds a round (see ``workloads.toml``)."""

    title: str
    like: str
    target: float
    records: int
    devices: int
    cpu: float
    cuda: float
    substitute: str
    set: dict[str, Any] = {}
    paper: dict[str, Any] = {}  # at the paper's accounting, whose head has other steps


class RowKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of every comparison: its method, whose tuned settings it has, and what it changes (see ``rows.toml``)."""

    title: str
    method: str
    tuned: bool = False
    like: str = ""
    program: str = ""
    set: dict[str, Any] = {}
    paper: dict[str, Any] = {}
    exact: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for: the scale, the folder, changes of all runs, and where workloads' own files lie."""

    scale: str
    out: Path
    changes: tuple[Tree, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of an item. `trials` chose its settings (0: untuned); `missing` says why it cannot be run."""

    workload: str
    row: str
    title: str
    accounting: str
    epsilon: float
    seed: int
    case: Case
    trials: int
    job: Job
    seconds: float
    missing: str = ""
    setting: dict[str, Any] | None = None  # of a trial


@functools.cache
def workloads() -> dict[str, Workload]:
    """All workloads by name."""
    return converted(recipes.reproduction("workloads"), dict[str, Workload])


def item_of(name: str) -> Item:
    """The item `name`."""
    return converted(recipes.reproduction(name), Item)


def cells_of(item: Item, asked: Asked) -> list[Cell]:
    """The runs of an item."""
    kinds = converted(recipes.reproduction("rows"), dict[str, RowKind])
    found: list[Cell] = []
    for runs in item.runs:
        runs = _smoke(runs) if asked.scale == SMOKE else runs
        for row, epsilon, case, seed in itertools.product(runs.rows, runs.epsilon, runs.cases, range(runs.seeds)):
            made = _Made(runs, row, kinds[row], epsilon, case, seed)
            if trials := item.options.get("trials"):
                found += _trials(made, 1 if asked.scale == SMOKE else trials, asked)
            else:
                found.append(_cell(made, asked))
    return list({(cell.job.key, cell.case.name): cell for cell in found}.values())


def ordered(items: Mapping[str, Iterable[Cell]]) -> list[Cell]:
    """The cells of several items, each run once, those that are worth most a second first.

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
    kept = {key: value for key, value in runs.set.items() if key not in LENGTHS}
    budgets = SMOKE_EPSILONS[: min(2, len(runs.epsilon))]
    epsilons = budgets if all(map(math.isfinite, runs.epsilon)) else (math.inf, *budgets[1:])
    rows = tuple(row for row in runs.rows if row != "public")  # a filter bank needs images
    kept = {key: value for key, value in kept.items() if not key.startswith("devices.")}
    return Runs(SMOKE, rows, runs.accounting, epsilons, 1, kept, tuple(map(_smoke_case, runs.cases[:3])))


def _smoke_case(case: Case) -> Case:
    """The same case for fewer devices: of a list the last values stay."""
    devices = workloads()[SMOKE].devices
    cut = {key: value[-devices:] if isinstance(value, list) else value for key, value in case.set.items()}
    return Case(case.name, case.x, cut)


def _trials(made: _Made, trials: int, asked: Asked) -> Iterator[Cell]:
    """The trials of one row, drawn from its lists of values."""
    space = space_of(recipes.reproduction("spaces")[made.runs.accounting], made.row)
    for number, setting in enumerate(draw(space, trials, made.row), 1):
        case = Case(f"trial {number}", number, {**made.case.set, **setting})
        cell = _cell(_Made(made.runs, made.row, made.kind, made.epsilon, case, made.seed), asked)
        yield replace(cell, setting=setting)


def _cell(made: _Made, asked: Asked) -> Cell:
    runs, workload = made.runs, workloads()[made.runs.workload]
    tree = recipes.tree(workload.like)
    tuned, trials = _tuned(made, asked.out)
    own, kind = asked.data.get(runs.workload, ""), {**made.kind.set, **getattr(made.kind, runs.accounting)}
    decided = {key: value for key, value in kind.items() if key != STEP}
    steps = workload.paper if runs.accounting == "paper" else {}
    changes: list[Tree] = [
        EVERY,
        {"privacy": {"accounting": runs.accounting}, "train": {"target": [workload.target]}},
        *(tree_of(part) for part in (workload.set, steps, kind, tuned, runs.set, made.case.set, decided)),
        *([{"data": {"path": own}}] if own else []),
        *asked.changes,
        {"train": {"method": made.kind.method, "seed": made.seed}, "privacy": {"epsilon": made.epsilon}},
    ]
    general = recipes.settings("", runs.accounting)
    asked_for = configuration.parse(layered(tree, general, made.kind.method, changes))
    config = fused_if_possible(asked_for, rounds=not made.kind.program)
    name = f"{runs.workload}-{runs.accounting}-{made.row}-eps{made.epsilon:g}-seed{made.seed}"
    rounds = sizes_of(config, workload.records, workload.devices).T
    return Cell(
        workload=runs.workload,
        row=made.row,
        title=made.kind.title,
        accounting=runs.accounting,
        epsilon=made.epsilon,
        seed=made.seed,
        case=made.case,
        trials=trials,
        job=Job(name, config, rounds, made.kind.program),
        seconds=_seconds(config, workload, rounds),
        missing="" if made.row == "memory" else _missing(config.data.name, own or config.data.path),
    )


def _tuned(made: _Made, out: Path) -> tuple[dict[str, Any], int]:
    """The settings that trials chose for a row, and how many trials there were; those of its own trials never count.

    They are read from the folder of this reproduction, or else from the shipped ones.
    """
    row = made.kind.like or (made.row if made.kind.tuned else "")
    name = f"{made.runs.workload}-{made.runs.accounting}"
    file = out / TUNING / f"{name}.toml"
    if "data.holdout" in made.runs.set or not row:
        return {}, 0
    found = recipes.toml_file(file) if file.exists() else _shipped(name)
    chosen = found.get(row, {})
    return dict(chosen.get("settings", {})), int(chosen.get("trials", 0)) if made.kind.tuned else 0


def _shipped(name: str) -> dict[str, Any]:
    try:
        return recipes.reproduction(f"tuned-{name}")
    except FileNotFoundError:
        return {}


def _seconds(config: Config, workload: Workload, rounds: int) -> float:
    """How long a run takes, as estimated; what is not counted in rounds takes as long as some hundred of them."""
    each = workload.cuda if config.runtime.accelerator == "cuda" else workload.cpu
    evaluations = rounds / config.train.eval_every
    return each * (rounds * (config.train.directions + 1) / 2 + 30 * evaluations + 200)


def _missing(name: str, path: str) -> str:
    """Why a run cannot begin: its records are not here."""
    if name not in catalogue.names():
        return f"not run: there is no data set {name}"
    return "" if catalogue.describe(name, path or None).present else "not run: its records are not here"
