"""What every transport offers: devices connect to a server that listens, and both sides read and write frames.

A transport is one file with a `Listener` and a `Connector`; `grpc_transport` is the one over networks,
`memory_transport` the one inside a process.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from dpzv.errors import PeerError
from dpzv.network.wire import CONTROL, Control, Stop, pack, unpack

__all__ = [
    "GOODBYE_SECONDS",
    "LONGEST_PAUSE",
    "Connector",
    "LinkLost",
    "Listener",
    "Peer",
    "Peers",
    "Stream",
    "last_word",
    "next_frame",
]

LONGEST_PAUSE = 30.0
"""The longest pause in seconds between two attempts of a device to connect."""

GOODBYE_SECONDS = 5.0
"""How long a party waits for the other side's last frames once one of them has said goodbye."""


class LinkLost(Exception):
    """The other side is gone or cannot be reached, or was silent for too long; the text says what is known."""


class Stream(Protocol):
    """Frames both ways: each arrives whole and once, in the order sent. Each side has one reader and one writer.

    A device ends the stream with `close`, the server by returning from the function that `Listener.start` was given.
    """

    @property
    def peer_name(self) -> str:
        """The verified name of the party at the other end; raises `PeerError` if it has no valid name of a party."""

    async def read(self) -> bytes | None:
        """The next frame, or `None` once the other side has ended the stream.

        Raises `LinkLost`, or a `PeerError` for a frame of more than `MAX_FRAME` bytes.
        """

    async def write(self, frame: bytes) -> None:
        """Send a frame; may wait until the other side reads. Raises `LinkLost`."""

    async def close(self) -> None:
        """Say that nothing more comes from this side; reading goes on. Raises `LinkLost`."""


class Connector(Protocol):
    """How a device reaches its server; the transport makes sure that nobody else answers."""

    def connect(self) -> AbstractAsyncContextManager[Stream]:
        """A new stream to the server; the link ends with the context. Raises `LinkLost`, at once or when it is used."""


class Listener(Protocol):
    """How a server is reached by its devices."""

    @property
    def address(self) -> str:
        """Where it listens, for the log; known once it has started."""

    async def start(self, talk: Callable[[Stream], Awaitable[None]]) -> None:
        """Run `talk` for every stream that a device opens from now on; it may be cancelled when a device is lost."""

    async def stop(self, seconds: float) -> None:
        """Accept no more streams, and end those that are left after `seconds`."""


async def next_frame(stream: Stream, seconds: float) -> bytes:
    """The next frame of a stream that should go on; `LinkLost` if it ends here, or if nothing comes in time."""
    try:
        async with asyncio.timeout(seconds):  # `wait_for` may swallow a cancellation that comes with the frame
            frame = await stream.read()
    except TimeoutError:
        raise LinkLost(f"nothing came for {seconds:g} s") from None
    if frame is None:
        raise LinkLost("the stream ended without a goodbye")
    return frame


async def last_word(stream: Stream, seconds: float = GOODBYE_SECONDS) -> Stop | None:
    """Read until the other side's goodbye, and return it if it comes within `seconds`.

    So a peer that was closed while it writes can go on writing, and then reads why it was closed.
    """
    with suppress(PeerError, LinkLost, TimeoutError):
        async with asyncio.timeout(seconds):
            while (frame := await stream.read()) is not None:
                if frame[:1] == CONTROL and isinstance(message := unpack(None, frame), Stop):
                    return message
    return None


class Peer:
    """Device m, connected to the server by one stream."""

    def __init__(self, m: int, stream: Stream) -> None:
        self.m, self.stream = m, stream
        self._writing = asyncio.Lock()
        self.closed = asyncio.Event()
        self.introduced = False  # whether it knows its rows and has all its releases, and so can be asked for things

    async def send(self, frame: bytes) -> None:
        """Send a frame, unless the device is gone."""
        async with self._writing:
            if not self.closed.is_set():
                try:
                    await self.stream.write(frame)
                except LinkLost:
                    self.closed.set()

    async def tell(self, control: Control) -> None:
        """Send a control message, unless the device is gone."""
        await self.send(pack(control))

    async def close(self, reason: str, *, final: bool = False, refused: bool = False) -> None:
        """Say goodbye with the reason, and send nothing more; `Stop` says what the rest means."""
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self.tell(Stop(reason, final, refused))
        self.closed.set()


class Peers:
    """The devices that are connected to the server, by number in `here`; `changed` is set when one comes or goes."""

    def __init__(self) -> None:
        self.here: dict[int, Peer] = {}
        self.changed = asyncio.Event()

    async def attach(self, m: int, stream: Stream) -> Peer:
        """Device m has come; an older stream of the same device is closed."""
        if (older := self.here.pop(m, None)) is not None:
            await older.close("the same device connected again")
        peer = self.here[m] = Peer(m, stream)
        self.changed.set()
        return peer

    def detach(self, peer: Peer) -> None:
        """This stream of a device has ended; the device may be back by another stream already."""
        peer.closed.set()
        if self.here.get(peer.m) is peer:
            del self.here[peer.m]
        self.changed.set()

    async def news(self, seconds: float = math.inf) -> None:
        """Return when something has changed, at the latest after `seconds`."""
        late = asyncio.get_running_loop().call_later(seconds, self.changed.set)  # `wait_for` costs a task each time
        try:
            await self.changed.wait()
        finally:
            late.cancel()
        self.changed.clear()

    def present(self) -> list[Peer]:
        """The devices that are connected and can be asked for things."""
        return [peer for peer in self.here.values() if peer.introduced]
