"""A device whose one frame holds as many empty arrays as fit into it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from .fake_device import FakeDevice, framed, read_words
from .http2 import Link, arguments

__all__ = ["attack", "frame_of"]


def frame_of(size: int, m: int = 1) -> bytes:
    """A batch of about `size` bytes, all of them empty arrays of shape [0, 0]."""
    return framed(b"m", "e", m, 0, (0, 0), [b""] * (size // 2))


def attack(port: int, keys: Path, name: str, words: list[bytes], size: int) -> str:
    """Send such a frame once the rows are known; how the server refused it, empty if it did not."""
    link = Link(port, keys, name)
    try:
        device = FakeDevice(link, words, (1, 1, 1))
        if device.go_on("rows", 30):
            device.send(frame_of(size, device.m))
            link.pump(10, lambda: link.refused)
        return link.ended or ("refused" if link.refused else "")
    finally:
        link.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--size", type=int, default=1 << 20)
    told = parser.parse_args(argv)
    words, deadline = read_words(told.words), time.monotonic() + told.seconds
    while time.monotonic() < deadline:
        try:
            print(attack(told.port, told.keys, told.name, words, told.size), flush=True)
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
