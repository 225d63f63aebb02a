"""The shipped data sets by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpzv.data import cifar10, mnist
from dpzv.data.cards import AMAZON, CARDS, CIFAR10, CREDIT, FLIGHTS, MNIST, MODELNET40, Card
from dpzv.data.columns import Column
from dpzv.data.dataset import Dataset, held_out
from dpzv.data.files import data_folder
from dpzv.errors import ConfigError, DataError
from dpzv.validate import one_of

__all__ = ["Availability", "describe", "load", "names"]

_FETCHED = {MNIST.name: mnist.missing, CIFAR10.name: cifar10.missing}


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
    card = CARDS[one_of("data set", name, CARDS)]
    if not card.get:
        return Availability(card, True, "comes with the installation")
    if name in _FETCHED:
        folder = data_folder(path)
        here = not _FETCHED[name](folder)
    else:
        folder = Path(path or "").expanduser()
        here = bool(path) and folder.exists()
    return Availability(card, here, str(folder) if here else card.get)


def load(
    name: str,
    path: str | Path | None = None,
    columns: Sequence[Column] = (),
    *,
    encoder: str = "",
    tokens: int = 192,
    holdout: float = 0.0,
) -> Dataset:
    """Read data set `name`.

    `path` is the user's own file or folder, or that of fetched data (``data.path``); `columns` are the recipe's
    [[data.columns]], needed by the tabular sets and refused by the others; `encoder` and `tokens` say how text is
    cut into tokens; a `holdout` above 0 puts this share of the training records in place of the test records.
    """
    card = CARDS[one_of("data set", name, CARDS)]
    if columns and not card.tabular:
        raise ConfigError(
            f"data set '{name}' is not tabular and takes no [[data.columns]], got {len(columns)}; remove them."
        )
    dataset = _load(card, path, columns, encoder, tokens)
    return held_out(dataset, holdout) if holdout else dataset


def _load(card: Card, path: str | Path | None, columns: Sequence[Column], encoder: str, tokens: int) -> Dataset:
    if card is MNIST:
        return mnist.load(path)
    if card is CIFAR10:
        return cifar10.load(path)
    if card is FLIGHTS:
        from dpzv.data import flights

        return flights.load(columns)
    if not card.get:
        from dpzv.data import embedded

        return embedded.load_breast(columns) if card.tabular else embedded.load_strips()
    own = _own(card, path)
    if card is MODELNET40:
        from dpzv.data import modelnet40

        return modelnet40.load(own)
    if card is CREDIT:
        from dpzv.data import credit

        return credit.load(own, columns)
    assert card is AMAZON
    from dpzv.data import amazon

    return amazon.load(own, encoder, tokens)


def _own(card: Card, path: str | Path | None) -> Path:
    """The user's file or folder, which the sets that are neither embedded nor fetched are read from."""
    if not path:
        raise DataError(f"data set '{card.name}' is read from files of yours, but data.path is not set; {card.get}.")
    own = Path(path).expanduser()
    if not own.exists():
        raise DataError(f"data.path should be the files of '{card.name}', but {own} does not exist; {card.get}.")
    return own
