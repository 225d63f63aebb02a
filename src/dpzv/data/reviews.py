"""Reading files of labelled reviews row by row: the official csv files, or JSON lines, packed by xz or not."""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dpzv.errors import DataError

__all__ = ["KINDS", "Review", "rows"]

KINDS = (".csv", ".jsonl", ".jsonl.xz")


class Review(msgspec.Struct, frozen=True):
    """One review: label 1 is positive; `dup` marks a repeated one; `split` is train, test, or empty if not said."""

    text: str
    label: int
    split: str = ""
    dup: bool = False
    title: str = ""

    def __post_init__(self) -> None:
        if self.label not in (0, 1):
            raise ValueError(f"label must be 0 or 1, got {self.label}")
        if self.split not in ("", "train", "test"):
            raise ValueError(f"split must be train or test, got '{self.split}'")

    @property
    def whole(self) -> str:
        """Title and text as one, the way the official files are usually read."""
        return f"{self.title}: {self.text}" if self.title else self.text


def rows(path: Path) -> Iterator[Review]:
    """The reviews of `path` in order; a row that cannot be read is refused by its number."""
    number = 1
    try:
        for review in _csv(path) if path.suffix == ".csv" else _jsonl(path):
            yield review
            number += 1
    except (ValueError, csv.Error, msgspec.MsgspecError) as error:
        raise DataError(
            f"row {number} of {path} should be a review, but reading it failed ({error}); "
            "give label 1 or 2, title and text in .csv files, {label, text} with label 0 or 1 in .jsonl files."
        ) from error
    except (EOFError, lzma.LZMAError) as error:
        raise DataError(
            f"{path} should be a whole xz file, but unpacking it failed ({error}); get it again."
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
