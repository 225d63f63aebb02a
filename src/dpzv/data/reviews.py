"""Reviews as records: what is left out, and the texts as token ids, a third of each text for every device."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import Card, Wanted
from dpzv.data.dataset import Dataset, Records, fingerprint_of
from dpzv.data.encoder import Cutter, cutter, encoder_folder, tokenizer_bytes
from dpzv.data.files import cached
from dpzv.errors import DataError

__all__ = ["SPLITS", "THIRDS", "Choice", "Review", "review_records", "same_text"]

SPLITS = ("train", "test")
THIRDS = ("first third", "middle third", "last third")
"""The devices of a set of reviews."""

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
        if self.split not in ("", *SPLITS):
            raise ValueError(f"split must be train or test, got '{self.split}'")

    @property
    def whole(self) -> str:
        """Title and text as one, the way the official files are usually read."""
        return f"{self.title}: {self.text}" if self.title else self.text


class Choice:
    """The reviews that are records: none that is marked `dup`, and no test text that occurs in training.

    `of_split` gives the reviews of a split in their order. Training reviews must be read first, and to their end.
    `repeated` and `seen` count what was left out so far for each of the two reasons.
    """

    def __init__(self, of_split: Callable[[str], Iterator[Review]]) -> None:
        self._of_split = of_split
        self._training: set[bytes] = set()
        self._digest = hashlib.sha256()
        self.repeated = self.seen = 0

    @property
    def digest(self) -> bytes:
        """Stands for the training texts that were read so far, in their order."""
        return self._digest.digest()

    def training(self) -> Iterator[Review]:
        """The training records, in order."""
        for review in self._single("train"):
            content = review.whole.encode()
            self._digest.update(len(content).to_bytes(8, "big") + content)
            self._training.add(same_text(review.whole))
            yield review

    def testing(self) -> Iterator[Review]:
        """The test records, in order."""
        for review in self._single("test"):
            if same_text(review.whole) in self._training:
                self.seen += 1
            else:
                yield review

    def _single(self, split: str) -> Iterator[Review]:
        for review in self._of_split(split):
            if review.dup:
                self.repeated += 1
            else:
                yield review


def same_text(text: str) -> bytes:
    """A hash that is the same for texts that differ only in case, spaces and punctuation."""
    return hashlib.blake2b(_SILENT.sub("", text.lower()).encode(), digest_size=16).digest()


def review_records(
    card: Card, wanted: Wanted, of_split: Callable[[str], Iterator[Review]], files: Sequence[bytes]
) -> Dataset:
    """Reviews as int32 token ids [D, tokens/3] a device, by the tokenizer of `wanted.encoder`; see `encoder.Cutter`.

    `files` are digests that stand for everything that `of_split` reads. Texts are tokenised once, and the result is
    kept in the data folder. The card's source is extended by how many reviews were left out.
    """
    folder = encoder_folder(wanted.encoder)
    cut = cutter(folder, wanted.tokens, len(card.devices))
    key = hashlib.sha256(_FORMAT)
    for part in (str(wanted.tokens).encode(), str(cut.pad).encode(), tokenizer_bytes(folder), *files):
        key.update(hashlib.sha256(part).digest())
    kept = cached(card.name, key.hexdigest(), lambda: _tokenised(Choice(of_split), cut))
    for split in SPLITS:
        if not len(kept[f"y_{split}"]):
            raise DataError(f"{wanted.folder} should hold reviews of split '{split}', but has none; {card.get}.")
    repeated, seen = (int(n) for n in kept["left_out"])
    out = f"{repeated} repeated reviews and {seen} test texts that occur in training are left out."
    return replace(card, source=f"{card.source.rstrip('.')}; {out}").dataset(
        Records(list(kept["x_train"]), kept["y_train"]),
        Records(list(kept["x_test"]), kept["y_test"]),
        fingerprint_of([kept["y_train"], kept["digest"]]),
    )


def _tokenised(chosen: Choice, cut: Cutter) -> dict[str, NDArray[Any]]:
    """Both splits as token ids and labels, how many rows were left out, and a digest of the training texts."""
    x_train, y_train = _encoded(chosen.training(), cut)
    x_test, y_test = _encoded(chosen.testing(), cut)
    arrays: dict[str, NDArray[Any]] = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    counts = np.array([chosen.repeated, chosen.seen])
    return {**arrays, "digest": np.frombuffer(chosen.digest, np.uint8), "left_out": counts}


def _encoded(reviews: Iterator[Review], cut: Cutter) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Token ids [segments, n, length] and labels [n], a chunk at a time: the texts need not fit into memory."""
    parts, labels = [cut.cut([])], []
    while chunk := list(itertools.islice(reviews, _CHUNK)):
        parts.append(cut.cut([review.whole for review in chunk]))
        labels += [review.label for review in chunk]
    return np.concatenate(parts, axis=1), np.array(labels, dtype=np.int64)
