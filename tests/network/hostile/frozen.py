"""A device that takes part until its first batch, and then takes nothing more, while it answers every ping."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .fake_device import FakeDevice, read_words
from .http2 import Link, arguments

__all__ = ["attack"]


def attack(
    port: int, keys: Path, name: str, words: list[bytes], shape: tuple[int, int, int], over: Callable[[], bool]
) -> str:
    """Freeze before the release of a first batch, and hold the link until `over`; how the server ended it."""
    link = Link(port, keys, name)
    try:
        device = FakeDevice(link, words, shape)
        if device.go_on("rounds", 30):
            link.freeze()
            device.send(device.batch())
        while not over() and not link.ended:
            link.pump(0.1)
        return link.ended
    finally:
        link.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--arrays", type=int, default=2)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    told = parser.parse_args(argv)
    words, deadline = read_words(told.words), time.monotonic() + told.seconds
    while time.monotonic() < deadline:
        try:
            shape = (told.arrays, told.batch, told.width)
            print(
                attack(told.port, told.keys, told.name, words, shape, lambda: time.monotonic() > deadline), flush=True
            )
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
