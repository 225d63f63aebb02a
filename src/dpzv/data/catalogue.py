"""The shipped data sets by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpzv.data.cards import CARDS, MNIST, Card
from dpzv.data.columns import Column
from dpzv.data.dataset import Dataset
from dpzv.data.mnist import data_folder, missing
from dpzv.errors import ConfigError
from dpzv.validate import one_of

__all__ = ["Availability", "describe", "load", "names"]


@dataclass(frozen=True, slots=True)
class Availability:
    """A data set's card, whether it is on this machine, and where it is or how to get it."""

    card: Card
    present: bool
    where: str


def names() -> tuple[str, ...]:
    """Names of all data sets, the default one first."""
    return tuple(CARDS)


def describe(name: str, path: str | Path | None = None) -> Availability:
    """What `dpzv data list` shows of `name`; opens no data."""
    one_of("data set", name, CARDS)
    if name != MNIST.name:
        return Availability(CARDS[name], True, "comes with the installation")
    folder = data_folder(path)
    if missing(folder):
        return Availability(MNIST, False, "run `dpzv data fetch mnist`")
    return Availability(MNIST, True, str(folder))


def load(name: str, path: str | Path | None = None, columns: Sequence[Column] = ()) -> Dataset:
    """Read data set `name`.

    `path` is the folder of fetched data (``data.path``); `columns` are the recipe's [[data.columns]], needed
    by the tabular sets and refused by the others.
    """
    one_of("data set", name, CARDS)
    if columns and not CARDS[name].tabular:
        raise ConfigError(
            f"data set '{name}' has pixels and takes no [[data.columns]], got {len(columns)}; remove them."
        )
    if name == "flights":
        from dpzv.data import flights

        return flights.load(columns)
    if name == MNIST.name:
        from dpzv.data import mnist

        return mnist.load(path)
    from dpzv.data import embedded

    return embedded.load_strips() if name == "digits" else embedded.load_breast(columns)
