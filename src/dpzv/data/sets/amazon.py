"""`amazon`: is a review positive? Three devices hold the thirds of its text as token ids.

``data.path`` is a folder with train and test files (the official train.csv and test.csv, or .jsonl, .jsonl.xz), or
one .jsonl file whose rows say their split. In a folder, a row whose split is not that of its file is left out, so a
file with both splits may serve as train.jsonl beside other reviews for test.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import lzma
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import Card, Wanted
from dpzv.data.dataset import Dataset, Records, fingerprint_of
from dpzv.data.encoder import Cutter, cutter, encoder_folder, tokenizer_bytes
from dpzv.data.files import cached, explained
from dpzv.errors import DataError

__all__ = ["CARD", "load"]

KINDS = (".csv", ".jsonl", ".jsonl.xz")
_SPLITS = ("train", "test")
_CHUNK = 8192  # texts tokenised at once
_SILENT = re.compile(r"[\W_]+")
_FORMAT = b"2"  # a part of the cache's key: it must change when what the cache holds changes


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


def load(wanted: Wanted) -> Dataset:
    """Reviews as int32 token ids [D, tokens/3] a device, by the tokenizer of `wanted.encoder`; see `encoder.Cutter`.

    Rows marked `dup` and test texts that occur in training (but for case, spaces and punctuation) are left out.
    Texts are tokenised once, and the result is kept in the data folder.
    """
    files = _files(wanted.folder)
    folder = encoder_folder(wanted.encoder)
    cut = cutter(folder, wanted.tokens, len(CARD.devices))
    key = hashlib.sha256(_FORMAT)
    for part in (str(wanted.tokens).encode(), str(cut.pad).encode(), tokenizer_bytes(folder), *map(_digest, files)):
        key.update(hashlib.sha256(part).digest())
    kept = cached(CARD.name, key.hexdigest(), lambda: _tokenised(files, cut))
    for split in _SPLITS:
        if not len(kept[f"y_{split}"]):
            raise DataError(f"{wanted.folder} should hold reviews of split '{split}', but has none; {CARD.get}.")
    repeated, seen = (int(n) for n in kept["left_out"])
    source = (
        f"Positive and negative Amazon reviews from {' and '.join(dict.fromkeys(f.name for f in files))}; "
        f"{repeated} repeated reviews and {seen} test texts that occur in training are left out."
    )
    return replace(CARD, source=source).dataset(
        Records(list(kept["x_train"]), kept["y_train"]),
        Records(list(kept["x_test"]), kept["y_test"]),
        fingerprint_of([kept["y_train"], kept["digest"]]),
    )


def _files(path: Path) -> tuple[Path, Path]:
    """The training and the test file; the same one twice if its rows say their split."""
    if path.is_file() and path.name.endswith(KINDS[1:]):
        return path, path
    files = {split: [file for kind in KINDS if (file := path / f"{split}{kind}").is_file()] for split in _SPLITS}
    if lacks := " and ".join(split for split in _SPLITS if not files[split]):
        raise DataError(
            f"data.path should hold the reviews of 'amazon', but {path} has no {lacks} file "
            f"({', '.join(KINDS)}); {CARD.get}."
        )
    return files["train"][0], files["test"][0]


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _tokenised(files: tuple[Path, Path], cut: Cutter) -> dict[str, NDArray[Any]]:
    """Both splits as token ids and labels, how many rows were left out, and a digest of the training texts."""
    one = files[0] == files[1]
    seen: set[bytes] = set()
    left_out = [0, 0]
    text_digest = hashlib.sha256()

    def training() -> Iterator[Review]:
        for review in _of_split(files[0], "train", one, left_out):
            content = review.whole.encode()
            text_digest.update(len(content).to_bytes(8, "big") + content)
            seen.add(_same(review.whole))
            yield review

    def testing() -> Iterator[Review]:
        for review in _of_split(files[1], "test", one, left_out):
            if _same(review.whole) in seen:
                left_out[1] += 1
            else:
                yield review

    x_train, y_train = _encoded(training(), cut)
    x_test, y_test = _encoded(testing(), cut)
    arrays: dict[str, NDArray[Any]] = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    return {**arrays, "digest": np.frombuffer(text_digest.digest(), np.uint8), "left_out": np.array(left_out)}


def _of_split(path: Path, split: str, must_say: bool, left_out: list[int]) -> Iterator[Review]:
    for number, review in enumerate(_reviews(path), 1):
        if must_say and not review.split:
            raise DataError(
                f"row {number} of {path} should say its split, train or test, and does not; add it, or put the "
                "file into a folder as train.jsonl beside a test.jsonl."
            )
        if review.split not in ("", split):
            continue
        if review.dup:
            left_out[0] += 1
        else:
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


def _same(text: str) -> bytes:
    """A hash that is the same for texts that differ only in case, spaces and punctuation."""
    return hashlib.blake2b(_SILENT.sub("", text.lower()).encode(), digest_size=16).digest()


def _encoded(reviews: Iterator[Review], cut: Cutter) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Token ids [segments, n, length] and labels [n], a chunk at a time: the texts need not fit into memory."""
    parts, labels = [cut.cut([])], []
    while chunk := list(itertools.islice(reviews, _CHUNK)):
        parts.append(cut.cut([review.whole for review in chunk]))
        labels += [review.label for review in chunk]
    return np.concatenate(parts, axis=1), np.array(labels, dtype=np.int64)


CARD = Card(
    name="amazon",
    task="binary",
    n_classes=2,
    records=4_000_000,
    devices=("first third", "middle third", "last third"),
    source="Positive and negative reviews (Amazon Review Polarity, Zhang et al. 2015), 3,600,000 for training, "
    "400,000 for test.",
    get="set data.path to the unpacked amazon_review_polarity_csv (train.csv and test.csv, linked from "
    "github.com/zhangxiangxiao/Crepe), to a folder with train.jsonl and test.jsonl, or to one .jsonl file with splits",
    load=load,
)
