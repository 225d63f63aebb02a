"""A transport inside one event loop: pairs of queues with the limits of a network, and links that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from dpzv.errors import PeerError
from dpzv.network.transport import LinkLost, Stream
from dpzv.protocol.codec import MAX_FRAME

__all__ = ["MemoryListener", "MemoryStream"]


class MemoryStream:
    """One end of a link; what is written at one end is read at the other."""

    def __init__(self, peer_name: str, other: MemoryStream | None = None) -> None:
        """`peer_name` is the name of the party at the other end, which is `other` or will be made later."""
        self.peer_name = peer_name
        self._inbox: asyncio.Queue[bytes | LinkLost | None] = asyncio.Queue()
        self.most = MAX_FRAME
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
        elif len(frame) > self.most:
            raise PeerError(f"a frame has at most {self.most} bytes here, got {len(frame)}; the link is closed.")
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
    """A server called 'server', which lets in parties with one of the `known` names."""

    def __init__(self, known: Collection[str]) -> None:
        self.known, self.address = known, "the memory of 'server'"
        self.talk: Callable[[Stream], Awaitable[None]] | None = None  # while it listens
        self.links: dict[asyncio.Future[None], MemoryStream] = {}  # the server's end of each link, by its talk

    async def start(self, talk: Callable[[Stream], Awaitable[None]]) -> None:
        """Run `talk` for every stream from now on."""
        self.talk = talk

    async def stop(self, seconds: float) -> None:
        """Accept no more streams, and end those that are left after `seconds`."""
        self.talk = None
        if self.links:
            await asyncio.wait(list(self.links), timeout=seconds)
        for task in list(self.links):
            task.cancel()

    def connector(self, name: str) -> MemoryConnector:
        """How the party called `name` reaches this server."""
        return MemoryConnector(self, name)

    def cut(self, name: str) -> None:
        """Lose the links of the device called `name`."""
        for stream in self.links.values():
            if stream.peer_name == name:
                stream.cut()


class MemoryConnector:
    """How the party called `name` reaches a `MemoryListener`."""

    def __init__(self, listener: MemoryListener, name: str) -> None:
        self._listener, self._name = listener, name

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[MemoryStream]:
        """A new stream to the server; the link ends with the context."""
        listener, name = self._listener, self._name
        if listener.talk is None or name not in listener.known:
            raise LinkLost(f"the server does not listen, or does not know '{name}'")
        here = MemoryStream("server")
        there = MemoryStream(name, here)
        task = asyncio.ensure_future(listener.talk(there))
        listener.links[task] = there
        task.add_done_callback(lambda task: listener.links.pop(task).hang_up())
        try:
            yield here
        finally:
            here.hang_up()
