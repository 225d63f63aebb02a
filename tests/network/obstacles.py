"""What can stand in the way of a run: a TCP link that is cut or falls silent, and a disk that is full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from pathlib import Path

__all__ = ["Disk", "Link"]


class Link:
    """Relays the bytes of one device to the server.

    `lives`: for each connection in turn the bytes (both ways together) after which it is closed at both ends, or, if
    below 0, after which nothing passes any more although it stays open; after those it is a plain link.
    """

    def __init__(self, *lives: int) -> None:
        self._lives = list(lives)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._count, self._broken = 0, set[int]()

    @property
    def broken(self) -> int:
        """How many connections have come to their end here."""
        return len(self._broken)

    def open(self, port: int) -> int:
        """Begin, towards `port`; the port to connect to."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._open(port), self._loop).result(10)

    def close(self) -> None:
        """Cut all that is left."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self, port: int) -> int:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._relay(reader, writer, port)
            except asyncio.CancelledError:
                pass
            finally:
                self._tasks.discard(task)

        self._server = await asyncio.start_server(relay, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # nobody listens at the moment
            writer.transport.abort()
            return
        life = self._lives.pop(0) if self._lives else None
        self._count += 1
        passed, number = 0, self._count

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal passed
            while data := await source.read(4096):
                passed += len(data)
                if life is not None and passed > abs(life):
                    self._broken.add(number)
                    if life < 0:
                        await asyncio.Event().wait()
                    return
                sink.write(data)
                await sink.drain()

        directions = [asyncio.ensure_future(carry(reader, back)), asyncio.ensure_future(carry(there, writer))]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(*directions, return_exceptions=True)
            writer.transport.abort()
            back.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Disk:
    """A disk of `size` bytes for one folder, in a mount namespace that a process of its own holds."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._keeper: subprocess.Popen[bytes] | None = None

    def hold(self, folder: Path) -> None:
        """Put `folder` on it; raises `OSError` where that is not allowed."""
        folder.mkdir(parents=True)
        script = f'mount -t tmpfs -o size={self._size} tmpfs "$1" && echo held && exec cat'
        self._keeper = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script, "sh", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != b"held\n":
            _, why = self._keeper.communicate()
            self._keeper = None
            raise OSError(f"no disk of its own can be mounted here ({why.decode().strip()})")

    @property
    def namespace(self) -> str:
        """Where a process must go to see it."""
        assert self._keeper is not None
        return f"/proc/{self._keeper.pid}/ns/mnt"

    def seen(self, path: Path) -> Path:
        """A path on it, as it can be reached from here."""
        assert self._keeper is not None
        return Path("/proc", str(self._keeper.pid), "root", *path.parts[1:])

    def fill(self, path: Path, spare: int) -> None:
        """Write the file `path` until only `spare` bytes are free."""
        free = os.statvfs(path.parent)
        path.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - spare)))

    def close(self) -> None:
        """Give it up, with all that is on it."""
        if self._keeper is not None:
            self._keeper.communicate(timeout=10)
            self._keeper = None
