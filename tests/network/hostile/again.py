"""One device that connects several times at once, with the same hello, and never answers again."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from .http2 import Link, arguments

__all__ = ["attack"]


def attack(port: int, keys: Path, name: str, hello: bytes, number: int, seconds: float) -> int:
    """Say hello on `number` links at the same moment; how many the server had not refused after `seconds`."""
    links: list[Link] = []
    try:
        links = [Link(port, keys, name) for _ in range(number)]
        together = threading.Barrier(number)

        def speak(link: Link) -> None:
            together.wait()
            link.say(hello)
            link.pump(seconds)

        threads = [threading.Thread(target=speak, args=(link,)) for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(not link.refused for link in links)
    finally:
        for link in links:
            link.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--number", type=int, default=8)
    told = parser.parse_args(argv)
    hello, deadline = bytes.fromhex(told.words.read_text().split()[0]), time.monotonic() + told.seconds
    while time.monotonic() < deadline:
        try:
            print(attack(told.port, told.keys, told.name, hello, told.number, 2), flush=True)
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
