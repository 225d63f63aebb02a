"""Keys for all parties of a benchmark, and processes that hold its devices."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from dpzv.network.keyfiles import create_authority, issue_party

__all__ = ["issue_keys", "spawned"]


def issue_keys(folder: Path, devices: Sequence[str]) -> None:
    """An authority, and the keys of the server and of these devices, each in a folder of its own."""
    create_authority(folder / "ca", 20)
    for name in ("server", *devices):
        issue_party(folder / "ca", name, folder / name, None, 10)


def spawned(target: Callable[[Connection], None], processes: int, stack: ExitStack) -> list[Connection]:
    """New processes that run `target` with a pipe each, until they read `None` when the `stack` is left."""
    context, pipes = multiprocessing.get_context("spawn"), []
    for _ in range(processes):
        here, there = context.Pipe()
        process = context.Process(target=target, args=(there,), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(here.send, None)
        pipes.append(here)
    return pipes
