"""A transport inside one event loop: pairs of queues with the limits of a network, and links that can be cut."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from dpzv.errors import PeerError
from dpzv.network.transport import LinkLost, Stream
from dpzv.protocol.codec import MAX_FRAME

__all__ = ["MemoryConnector", "MemoryListener", "MemoryStream"]

LOG = logging.getLogger("dpzv.memory")


class MemoryStream:
    """One end of a link; what is written at one end is read at the other."""

    def __init__(self, peer_name: str, other: MemoryStream | None = None) -> None:
        """`peer_name` is the name of the party at the other end."""
        self.peer_name = peer_name
        self._inbox: asyncio.Queue[bytes | LinkLost | None] = asyncio.Queue()
        self._unwritable = ""  # why nothing can be written any more
        self._other = other or self
        self._other._other = self

    async def read(self) -> bytes | None:
        """The next frame, or `None` once the other side has ended the stream."""
        frame = await self._inbox.get()
        if not isinstance(frame, bytes):
            self._inbox.put_nowait(frame)  # every later read ends in the same way
            if frame is not None:
                raise LinkLost(str(frame))
        elif len(frame) > MAX_FRAME:
            raise PeerError(f"a frame has at most {MAX_FRAME} bytes, got {len(frame)}; the peer is closed.")
        return frame

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        if self._unwritable:
            raise LinkLost(self._unwritable)
        self._other._inbox.put_nowait(frame)
        await asyncio.sleep(0)  # others get their turn, as over a network

    async def close(self) -> None:
        """Say that nothing more comes from this side."""
        if self._unwritable:
            raise LinkLost(self._unwritable)
        self._unwritable = "this side has closed the stream"
        self._other._inbox.put_nowait(None)

    def hang_up(self) -> None:
        """Leave: the other side reads what was sent and then the end, and can write nothing more."""
        self._unwritable, self._other._unwritable = "this side has left", "the other side has left"
        self._other._inbox.put_nowait(None)

    def cut(self) -> None:
        """Lose the link, at both ends."""
        for end in (self, self._other):
            end._unwritable = "the link was cut"
            end._inbox.put_nowait(LinkLost(end._unwritable))


class MemoryListener:
    """A server called `name`, which lets in whoever calls itself by one of the `known` names."""

    def __init__(self, known: Collection[str], name: str = "server") -> None:
        self.address = f"the memory of '{name}'"
        self._known, self._name = known, name
        self._talk: Callable[[Stream], Awaitable[None]] | None = None
        self._links: dict[asyncio.Task[None], MemoryStream] = {}

    async def start(self, talk: Callable[[Stream], Awaitable[None]]) -> None:
        """Run `talk` for every stream from now on."""
        self._talk = talk

    @property
    def listening(self) -> bool:
        """Whether devices are let in."""
        return self._talk is not None

    async def stop(self, seconds: float) -> None:
        """Let nobody in any more, and end the streams that are left after `seconds`."""
        self._talk = None
        if self._links:
            await asyncio.wait(list(self._links), timeout=seconds)
        for task in list(self._links):
            task.cancel()

    def connector(self, name: str) -> MemoryConnector:
        """How the party called `name` reaches this server."""
        return MemoryConnector(self, name)

    def open(self, name: str) -> MemoryStream:
        """The device's end of a new stream."""
        if self._talk is None or name not in self._known:
            raise LinkLost(f"'{self._name}' does not listen, or does not know '{name}'")
        here = MemoryStream(self._name)
        there = MemoryStream(name, here)
        task = asyncio.create_task(self._serve(self._talk, there))
        self._links[task] = there
        task.add_done_callback(self._links.pop)
        return here

    def cut(self, name: str) -> None:
        """Lose the links of the device called `name`."""
        for stream in list(self._links.values()):
            if stream.peer_name == name:
                stream.cut()

    async def _serve(self, talk: Callable[[Stream], Awaitable[None]], stream: MemoryStream) -> None:
        try:
            await talk(stream)
        except Exception:
            LOG.exception("the server failed while it talked to '%s'", stream.peer_name)
        finally:
            stream.hang_up()


class MemoryConnector:
    """How one party reaches a `MemoryListener`."""

    def __init__(self, listener: MemoryListener, name: str) -> None:
        self._listener, self._name = listener, name

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[MemoryStream]:
        """A new stream to the server; the link ends with the context."""
        stream = self._listener.open(self._name)
        try:
            yield stream
        finally:
            stream.hang_up()
