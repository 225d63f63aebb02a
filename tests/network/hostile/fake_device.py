"""A device made of raw frames: it gets as far into a run as an attack needs, with embeddings of zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .http2 import Link

__all__ = ["FakeDevice", "framed", "read_words"]

PART = 1 << 18


def read_words(path: Path) -> list[bytes]:
    """The frames of a hello and of ids, one a line in hex."""
    return [bytes.fromhex(line) for line in path.read_text().split()]


def framed(kind: bytes, *fields: Any) -> bytes:
    """A frame of either kind ('c' or 'm')."""
    return kind + msgspec.msgpack.encode(fields)


class FakeDevice:
    """Answers what the server asks on `link`. `words` are its hello and its ids; `shape` is that of a batch.

    A batch has [number of arrays, B, k] numbers.
    """

    def __init__(self, link: Link, words: list[bytes], shape: tuple[int, int, int]) -> None:
        self.link, self._words, self._shape = link, words, shape
        self._heard, self._held = 0, b""
        self.asked: list[str] = []
        self.m = self._train = self._test = 0
        self.send(words[0])

    def send(self, frame: bytes) -> bool:
        """Send a frame, in parts if it is long."""
        if len(frame) <= PART:
            return self.link.say(frame)
        starts = range(0, len(frame), PART - 1)
        marks = [b"+"] * (len(starts) - 1) + [b"."]
        return all(self.link.say(mark + frame[at : at + PART - 1]) for mark, at in zip(marks, starts, strict=True))

    def go_on(self, until: str, seconds: float) -> bool:
        """Answer until the server asks for `until` ("fill", "evaluate", "rounds", "rows"); true if it did."""
        while until not in self.asked and not self.link.ended and seconds > 0:
            self.link.pump(0.1, lambda: len(self.link.messages) > self._heard)
            seconds -= 0.1
            while self._heard < len(self.link.messages) and until not in self.asked:
                self._heard += 1
                self._part(self.link.messages[self._heard - 1])
        return until in self.asked

    def batch(self, position: int = 0) -> bytes:
        """The frame of a batch."""
        arrays, B, k = self._shape
        return framed(b"m", "e", self.m, position, (B, k), [bytes(4 * B * k)] * arrays)

    def _part(self, message: bytes) -> None:
        """A message is a frame, or a part of one."""
        if message[:1] not in (b"+", b"."):
            self._answer(message)
            return
        self._held += message[1:]
        if message[:1] == b".":
            frame, self._held = self._held, b""
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        kind, *fields = msgspec.msgpack.decode(frame[1:])
        if kind == "welcome":
            self.m = fields[0]
            if fields[3]:
                all(self.send(frame) for frame in self._words[1:])
        elif kind == "rows":
            self._train, self._test = fields[:2]
            self.asked.append("rows")
        elif kind == "ask":
            self.asked.append(fields[0])
            if fields[0] == "fill":
                self._embed("f", self._train, "fill")
            elif fields[0] == "evaluate":
                self._embed("v", self._test, "evaluate")

    def _embed(self, tag: str, rows: int, what: str) -> None:
        k = self._shape[2]
        self.send(framed(b"m", tag, self.m, 0, (rows, k), bytes(4 * rows * k)))
        self.send(framed(b"c", "done", what))
