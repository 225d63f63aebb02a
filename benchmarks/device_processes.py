"""What benchmarks of a networked run on loopback share: keys, processes that hold devices, and the server's pace."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from dpzv.network.grpc_transport import GrpcListener
from dpzv.network.keyfiles import Credentials, create_authority, issue_party
from dpzv.network.server_party import ServerParty

__all__ = ["CountingServer", "credentials", "issue_keys", "pace", "port_of", "spawned"]


class _Counting(Protocol):
    @property
    def rounds(self) -> int: ...


class CountingServer(ServerParty):
    """A server that says how many rounds it has made."""

    @property
    def rounds(self) -> int:
        """The rounds so far."""
        return self._run.server.t if self._run is not None else 0


def issue_keys(folder: Path, devices: Sequence[str]) -> None:
    """An authority, and the keys of the server and of these devices, each in a folder of its own."""
    create_authority(folder / "ca", 20)
    for name in ("server", *devices):
        issue_party(folder / "ca", name, folder / name, None, 10)


def credentials(folder: Path, name: str) -> Credentials:
    """The keys of a party that `issue_keys` has put into `folder`."""
    return Credentials(folder / name / f"{name}.crt", folder / name / f"{name}.key", folder / name / "ca.crt")


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


async def port_of(listener: GrpcListener, serving: asyncio.Task[Any]) -> int:
    """The port on which a server listens, as soon as it does; an error of the server is raised."""
    while not listener.port:
        if serving.done():
            serving.result()
        await asyncio.sleep(0.001)
    return listener.port


async def pace(server: _Counting, serving: asyncio.Task[Any], rounds: int) -> float:
    """Rounds per second between a tenth and nine tenths of all `rounds`; an error of the server is raised."""
    seen = []
    for share in (0.1, 0.9):
        while server.rounds < share * rounds:
            if serving.done():
                serving.result()
            await asyncio.sleep(0.002)
        seen.append((time.perf_counter(), server.rounds))
    (start, first), (end, last) = seen
    return (last - first) / (end - start)
