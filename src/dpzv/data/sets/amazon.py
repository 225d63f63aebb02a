"""`amazon`: is a review positive? Three devices hold the thirds of its text as token ids.

``data.path`` is a folder with train and test files (the official train.csv and test.csv, or .jsonl, .jsonl.xz), or
one .jsonl file whose rows say their split. In a folder, a row whose split is not that of its file is left out, so a
file with both splits may serve as train.jsonl beside other reviews for test.
"""

from __future__ import annotations

import csv
import hashlib
import lzma
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from dpzv.data.cards import Card, Wanted
from dpzv.data.dataset import Dataset
from dpzv.data.files import explained
from dpzv.data.reviews import SPLITS, THIRDS, Review, review_records
from dpzv.errors import DataError

__all__ = ["CARD", "load", "split_reader"]

KINDS = (".csv", ".jsonl", ".jsonl.xz")


def load(wanted: Wanted) -> Dataset:
    """The reviews as token ids, a third of every text at each device (`review_records`)."""
    files = _files(wanted.folder)
    source = f"Positive and negative Amazon reviews from {' and '.join(dict.fromkeys(f.name for f in files))}"
    card = replace(CARD, source=source)
    return review_records(card, wanted, split_reader(wanted.folder), [_digest(file) for file in files])


def split_reader(path: Path) -> Callable[[str], Iterator[Review]]:
    """A function that gives the reviews of a split in their order, read from the user's file or folder `path`."""
    return partial(_of_split, _files(path))


def _files(path: Path) -> tuple[Path, Path]:
    """The training and the test file; the same one twice if its rows say their split."""
    if path.is_file() and path.name.endswith(KINDS[1:]):
        return path, path
    files = {split: [file for kind in KINDS if (file := path / f"{split}{kind}").is_file()] for split in SPLITS}
    if lacks := " and ".join(split for split in SPLITS if not files[split]):
        raise DataError(
            f"data.path should hold the reviews of 'amazon', but {path} has no {lacks} file "
            f"({', '.join(KINDS)}); {CARD.get}."
        )
    return files["train"][0], files["test"][0]


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _of_split(files: tuple[Path, Path], split: str) -> Iterator[Review]:
    must_say, path = files[0] == files[1], files[SPLITS.index(split)]
    for number, review in enumerate(_reviews(path), 1):
        if must_say and not review.split:
            raise DataError(
                f"row {number} of {path} should say its split, train or test, and does not; add it, or put the "
                "file into a folder as train.jsonl beside a test.jsonl."
            )
        if review.split in ("", split):
            yield review


def _reviews(path: Path) -> Iterator[Review]:
    """The reviews of `path` in order; a row that cannot be read is refused by its number."""
    number = 1
    try:
        expected = f"{path} should be a whole xz file, but unpacking it"
        with explained(expected, "get it again.", EOFError, lzma.LZMAError):
            for review in _csv(path) if path.suffix == ".csv" else _jsonl(path):
                yield review
                number += 1
    except (ValueError, csv.Error, msgspec.MsgspecError) as error:
        raise DataError(
            f"row {number} of {path} should be a review, but reading it failed ({error}); "
            "give label 1 or 2, title and text in .csv files, {label, text} with label 0 or 1 in .jsonl files."
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} should be readable, but reading it failed ({error.strerror}); get it again."
        ) from error


def _csv(path: Path) -> Iterator[Review]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            if len(row) != 3 or row[0] not in ("1", "2"):
                raise ValueError(f"{len(row)} columns that begin with '{row[0][:20] if row else ''}'")
            yield Review(text=row[2], label=int(row[0]) - 1, title=row[1])


def _jsonl(path: Path) -> Iterator[Review]:
    decode = msgspec.json.Decoder(Review).decode
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        for line in file:
            yield decode(line)


CARD = Card(
    name="amazon",
    task="binary",
    n_classes=2,
    records=4_000_000,
    devices=THIRDS,
    source="Positive and negative reviews (Amazon Review Polarity, Zhang et al. 2015), 3,600,000 for training, "
    "400,000 for test.",
    get="set data.path to the unpacked amazon_review_polarity_csv (train.csv and test.csv, linked from "
    "github.com/zhangxiangxiao/Crepe), to a folder with train.jsonl and test.jsonl, or to one .jsonl file with splits",
    load=load,
)
