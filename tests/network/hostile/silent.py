"""Many TCP connections that say nothing at all, or one byte; one that is closed is opened again."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from .http2 import arguments

__all__ = ["crowd"]


def crowd(port: int, number: int, seconds: float, word: bytes = b"") -> int:
    """Hold `number` connections that say no more than `word` for so long; how many were made in all."""
    held: list[socket.socket] = []
    made, deadline = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            held = [one for one in held if _open(one)]
            while len(held) < number and time.monotonic() < deadline:
                try:
                    one = socket.create_connection(("127.0.0.1", port), timeout=5)
                except OSError:
                    time.sleep(0.1)
                    break
                one.setblocking(False)
                one.send(word)
                held.append(one)
                made += 1
            time.sleep(0.05)
    finally:
        for one in held:
            one.close()
    return made


def _open(one: socket.socket) -> bool:
    try:
        if one.recv(1):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    one.close()
    return False


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "", certified=False)
    parser.add_argument("--number", type=int, default=1200)
    parser.add_argument("--word", default="", help="what each connection says")
    told = parser.parse_args(argv)
    print(crowd(told.port, told.number, told.seconds, told.word.encode()), flush=True)


if __name__ == "__main__":
    main()
