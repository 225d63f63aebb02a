"""`amazon`: is a review positive? Three devices hold the thirds of its text as token ids.

``data.path`` is a folder with train and test files (the official train.csv and test.csv, or .jsonl, .jsonl.xz), or
one .jsonl file whose rows say their split. In a folder, a row that says another split than its file is left out, so
that train.jsonl may be one half of such a file and test.jsonl reviews from elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.data.cache import cached
from dpzv.data.cards import AMAZON
from dpzv.data.dataset import Dataset, fingerprint_of, from_arrays
from dpzv.data.encoder import encoder_folder
from dpzv.data.reviews import KINDS, Review, rows
from dpzv.data.tokens import Cutter, cutter, tokenizer_bytes
from dpzv.errors import DataError

__all__ = ["load"]

_SPLITS = ("train", "test")
_CHUNK = 8192  # texts tokenised at once
_SILENT = re.compile(r"[\W_]+")
_FORMAT = b"2"  # changes with what the cache holds


def load(path: Path, encoder: str = "", tokens: int = 192) -> Dataset:
    """Reviews as int32 token ids [D, tokens/3] a device, by the tokenizer of `encoder`; see `tokens.Cutter`.

    Rows marked `dup` and test texts that occur in training (but for case, spaces and punctuation) are left out.
    Tokenised once: the result is kept in the data folder.
    """
    files = _files(path)
    folder = encoder_folder(encoder)
    cut = cutter(folder, tokens, len(AMAZON.devices))
    key = hashlib.sha256(_FORMAT)
    for part in (str(tokens).encode(), str(cut.pad).encode(), tokenizer_bytes(folder), *map(_digest, files)):
        key.update(hashlib.sha256(part).digest())
    kept = cached(AMAZON.name, key.hexdigest(), lambda: _tokenised(files, cut))
    for split in _SPLITS:
        if not len(kept[f"y_{split}"]):
            raise DataError(f"{path} should hold reviews of split '{split}', but has none; {AMAZON.get}.")
    repeated, seen = (int(n) for n in kept["left_out"])
    return from_arrays(
        list(kept["x_train"]),
        kept["y_train"],
        list(kept["x_test"]),
        kept["y_test"],
        task=AMAZON.task,
        devices=AMAZON.devices,
        name=AMAZON.name,
        source=f"Positive and negative Amazon reviews from {' and '.join(dict.fromkeys(f.name for f in files))}; "
        f"{repeated} repeated reviews and {seen} test texts that occur in training are left out.",
        fingerprint=fingerprint_of([kept["y_train"], kept["digest"]]),
    )


def _files(path: Path) -> tuple[Path, Path]:
    """The training and the test file; the same one twice if its rows say their split."""
    if path.is_file() and path.name.endswith(KINDS[1:]):
        return path, path
    found = [
        next((path / f"{split}{kind}" for kind in KINDS if (path / f"{split}{kind}").is_file()), None)
        for split in _SPLITS
    ]
    train, test = found
    if train is None or test is None:
        lacks = " and ".join(split for split, file in zip(_SPLITS, found, strict=True) if file is None)
        raise DataError(
            f"data.path should hold the reviews of 'amazon', but {path} has no {lacks} file "
            f"({', '.join(KINDS)}); {AMAZON.get}."
        )
    return train, test


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _tokenised(files: tuple[Path, Path], cut: Cutter) -> dict[str, NDArray[Any]]:
    """Both splits as token ids and labels, how many rows were left out, and a digest of the training texts."""
    train_file, test_file = files
    one = train_file == test_file
    seen: set[bytes] = set()
    left_out = [0, 0]
    text_digest = hashlib.sha256()

    def training() -> Iterator[Review]:
        for review in _of_split(train_file, "train", one, left_out):
            content = review.whole.encode()
            text_digest.update(len(content).to_bytes(8, "big") + content)
            seen.add(_same(review.whole))
            yield review

    def testing() -> Iterator[Review]:
        for review in _of_split(test_file, "test", one, left_out):
            if _same(review.whole) in seen:
                left_out[1] += 1
            else:
                yield review

    x_train, y_train = _encoded(training(), cut)
    x_test, y_test = _encoded(testing(), cut)
    return {
        "x_train": x_train,
        "y_train": y_train,
        "x_test": x_test,
        "y_test": y_test,
        "digest": np.frombuffer(text_digest.digest(), dtype=np.uint8),
        "left_out": np.array(left_out),
    }


def _of_split(path: Path, split: str, must_say: bool, left_out: list[int]) -> Iterator[Review]:
    for number, review in enumerate(rows(path), 1):
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


def _same(text: str) -> bytes:
    """The same for texts that differ in case, spaces and punctuation alone."""
    return hashlib.blake2b(_SILENT.sub("", text.lower()).encode(), digest_size=16).digest()


def _encoded(reviews: Iterator[Review], cut: Cutter) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Token ids [segments, n, length] and labels [n], a chunk at a time: the texts need not fit into memory."""
    parts, labels = [cut.cut([])], []
    while chunk := list(itertools.islice(reviews, _CHUNK)):
        parts.append(cut.cut([review.whole for review in chunk]))
        labels += [review.label for review in chunk]
    return np.concatenate(parts, axis=1), np.array(labels, dtype=np.int64)
