"""What the files in ``recipes/reproduce`` say: items of the paper, workloads, rows, and what trials chose for them."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from dpzv import recipes
from dpzv.errors import ConfigError
from dpzv.validate import converted, one_of

__all__ = ["ITEMS", "LENGTH", "TUNING", "Case", "Item", "RowKind", "Runs", "Tuned", "Workload"]
__all__ += ["item_of", "named", "own_data", "row_kinds", "shipped", "workloads"]

ALL, TUNING = "all", "tuning"
ITEMS = (
    *("fig-convergence", "table-communication", "fig-tradeoff", "fig-memory", "fig-budget", "fig-clipping"),
    *("fig-clip-level", "fig-overview", "fig-honest", "fig-widths", "fig-delay", "fig-theory"),
)
"""The items by name, in the order of the page; the trials that come before them are an item of their own."""

LENGTH = "train.passes"
"""Noise grows with the length of a run, so trials may choose it for a row."""


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
    longer: bool = True  # whether a run whose length trials chose is longer at a larger budget
    space: dict[str, list[Any]] = {}  # lists of values that take the place of those that all workloads have


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
    chance: float = 0.0  # the accuracy of a guess
    set: dict[str, Any] = {}
    paper: dict[str, Any] = {}  # at the paper's accounting, whose head has other steps


class RowKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of every comparison (see ``rows.toml``).

    `like` names the row whose tuned settings it has, `frozen` the row with such a head over devices that never move. A
    row that is `alike` is one run, whatever seeds, lengths and cases an item has.
    """

    title: str
    method: str
    tuned: bool = False
    like: str = ""
    frozen: str = "frozen"
    alike: bool = False
    program: str = ""
    slower: float = 1.0  # how many times as long as the workload's a round takes, to estimate how long runs take
    set: dict[str, Any] = {}
    paper: dict[str, Any] = {}
    exact: dict[str, Any] = {}


class Tuned(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What trials chose for a row: how many there were, at which budget, the best score and its settings."""

    trials: int = 0
    epsilon: float = 1.0
    score: float = 0.0
    settings: dict[str, Any] = {}
    passes: float = 0.0  # the length among the settings

    def without_length(self) -> Tuned:
        """The same with the length apart."""
        others = {key: value for key, value in self.settings.items() if key != LENGTH}
        return msgspec.structs.replace(self, settings=others, passes=float(self.settings.get(LENGTH, 0.0)))


@functools.cache
def workloads() -> dict[str, Workload]:
    """All workloads by name."""
    return converted(recipes.reproduction("workloads"), dict[str, Workload])


def named(name: str) -> list[str]:
    """The items that a user means by `name`: one of them, or all."""
    one_of("the item", name, (ALL, TUNING, *ITEMS))
    return [TUNING, *ITEMS] if name == ALL else [name]


def item_of(name: str) -> Item:
    """The item `name`."""
    return converted(recipes.reproduction(name), Item)


@functools.cache
def row_kinds() -> dict[str, RowKind]:
    """All rows by name."""
    return converted(recipes.reproduction("rows"), dict[str, RowKind])


def own_data(text: str) -> tuple[str, str]:
    """A workload and the path of the user's own files for it, given as ``WORKLOAD=PATH``."""
    workload, equals, path = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--data expects WORKLOAD=PATH, got '{text}'; e.g. --data modelnet40=views.npz.")
    one_of("the workload", workload, workloads())
    return workload, path


def shipped(name: str) -> dict[str, Any]:
    """The shipped file with what trials chose for a workload and an accounting, such as ``mnist-paper``; or nothing."""
    try:
        return recipes.reproduction(f"tuned-{name}")
    except FileNotFoundError:
        return {}
