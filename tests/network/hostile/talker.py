"""A first frame that is no hello a device would say: far too long, or with a version of 100 kB."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .fake_device import framed
from .http2 import Link, arguments

__all__ = ["attack", "long_version"]


def long_version(hello: bytes, size: int) -> bytes:
    """The same hello with a version of `size` letters."""
    fields = msgspec.msgpack.decode(hello[1:])
    return framed(b"c", fields[0], "9" * size, *fields[2:])


def attack(port: int, keys: Path, name: str, frame: bytes) -> str:
    """Say it; what the server answers, empty if nothing."""
    link = Link(port, keys, name)
    try:
        link.say(frame)
        link.pump(5, lambda: bool(link.messages))
        return link.messages[0].decode(errors="replace") if link.messages else ""
    finally:
        link.close()


def main(argv: Sequence[str] | None = None) -> None:
    told = arguments(__doc__ or "").parse_args(argv)
    frame = long_version(bytes.fromhex(told.words.read_text().split()[0]), 100_000)
    deadline = time.monotonic() + told.seconds
    while time.monotonic() < deadline:
        try:
            attack(told.port, told.keys, told.name, frame)
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
