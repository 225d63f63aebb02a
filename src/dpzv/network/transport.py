"""What every transport offers: devices connect to a server that listens, and both sides read and write frames.

A transport is one file with a `Listener` and a `Connector`; `grpc_transport` is the one over networks,
`memory_transport` the one inside a process.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

from numpy.typing import NDArray

from dpzv.errors import PeerError
from dpzv.network.logs import LimitedLog, shortened
from dpzv.network.wire import CONTROL, Control, Stop, pack, pieces, unpack

__all__ = [
    "GOODBYE_SECONDS",
    "Connector",
    "LinkLost",
    "Listener",
    "Peer",
    "Peers",
    "Stream",
    "last_word",
    "next_frame",
]

LOG = logging.getLogger("dpzv.server")

GOODBYE_SECONDS = 5.0
"""How long a party waits for the other side's last frames once one of them has said goodbye."""

WRITE_SECONDS = 5.0
"""How long an introduced device (`Peer.introduced`) may take to accept a frame: the run may be waiting for it."""

FIRST_WRITE_SECONDS = 600.0
"""How long it may take before that: it may be busy with releases that it has missed, and nobody waits for it."""

SLOWEST_LINE = 32_768
"""Bytes a second that a device's line must carry; a longer frame gets more time at this rate."""

CLOSE_SECONDS = 3.0
"""How long a device may take to accept the server's goodbye."""

LINGER_SECONDS = 60.0
"""How long a device that was told goodbye may keep its link."""


class LinkLost(Exception):
    """The other side is gone or cannot be reached, or was silent for too long; the text says what is known."""


class Stream(Protocol):
    """Frames both ways: each arrives whole and once, in the order sent. Each side has one reader and one writer.

    A device ends the stream with `close`, the server by returning from the function that `Listener.start` was given.
    `most` is the length of the longest frame that is read; the server sets it by what it waits for.
    """

    most: int

    @property
    def peer_name(self) -> str:
        """The verified name of the party at the other end; raises `PeerError` if it has no valid name of a party."""

    async def read(self) -> bytes | None:
        """The next frame, or `None` once the other side has ended the stream.

        Raises `LinkLost`, or a `PeerError` for a frame of more than `most` bytes.
        """

    async def write(self, frame: bytes) -> None:
        """Send a frame; may wait until the other side reads. Raises `LinkLost`."""

    async def close(self) -> None:
        """Say that nothing more comes from this side; reading goes on. Raises `LinkLost`."""

    def cut(self) -> None:
        """Lose the link at once: whoever reads or writes gets `LinkLost`, at either end."""


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

    A peer may still be writing when it is closed. Reading on lets it finish, so that it then reads why it was closed.
    """
    with suppress(PeerError, LinkLost, TimeoutError):
        async with asyncio.timeout(seconds):
            while (frame := await stream.read()) is not None:
                if frame[:1] == CONTROL and isinstance(message := unpack(None, frame), Stop):
                    return message
    return None


class Peer:
    """Device m, connected to the server by one stream. Every write to it has a deadline."""

    def __init__(self, m: int, stream: Stream) -> None:
        self.m, self.stream = m, stream
        self._writing = asyncio.Lock()
        self._lingering: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()
        self.introduced = False  # whether it knows its rows and has all its releases, and so can be asked for things

    async def send(self, frame: bytes) -> None:
        """Send a frame, unless the device is gone. The link of a device that does not take it in time is cut."""
        async with self._writing:
            if not self.closed.is_set():
                seconds = (WRITE_SECONDS if self.introduced else FIRST_WRITE_SECONDS) + len(frame) / SLOWEST_LINE
                late = asyncio.get_running_loop().call_later(seconds, self._cut, seconds)
                try:
                    await self.stream.write(frame)
                except LinkLost:
                    self.closed.set()
                finally:
                    late.cancel()

    async def tell(self, control: Control) -> None:
        """Send a control message, unless the device is gone."""
        await self.send(pack(control))

    async def send_list(self, entries: NDArray[Any]) -> None:
        """Send a list whose length the device knows, in pieces; raises `LinkLost` if it goes away meanwhile."""
        for frame in pieces(entries):
            await self.send(frame)
            self.require_open()

    async def close(
        self, reason: str, *, final: bool = False, refused: bool = False, linger: float = LINGER_SECONDS
    ) -> None:
        """Say goodbye with the reason, and send nothing more; `Stop` says what `final` and `refused` mean.

        The link is cut if the device does not accept the goodbye, or if it keeps the link for `linger` seconds after.
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.tell(Stop(shortened(reason), final, refused))
        except TimeoutError:
            self.stream.cut()
        if not self.closed.is_set():
            self.closed.set()
            self._lingering = asyncio.get_running_loop().call_later(linger, self.stream.cut)

    def require_open(self) -> None:
        """Raise `LinkLost` if the device is gone, or was told goodbye in the meantime."""
        if self.closed.is_set():
            raise LinkLost("its link was closed in the meantime")

    def gone(self) -> None:
        """Take note that its stream has ended."""
        self.closed.set()
        if self._lingering is not None:
            self._lingering.cancel()

    def _cut(self, seconds: float) -> None:
        LOG.warning("device %d did not take what it was sent within %.0f s; its link is cut", self.m, seconds)
        self.closed.set()
        self.stream.cut()


class Peers:
    """The devices that are connected to the server, by number in `here`; `changed` is set when one comes or goes.

    `log` is for lines about what peers do; it is limited, so that no peer can flood the log.
    """

    def __init__(self) -> None:
        self.here: dict[int, Peer] = {}
        self.changed = asyncio.Event()
        self.log = LimitedLog(LOG)

    async def attach(self, m: int, stream: Stream) -> Peer:
        """Take note that device m has connected by `stream`, and close its older stream, if it has one."""
        peer, older = Peer(m, stream), self.here.get(m)
        self.here[m] = peer  # before any wait, so that of several streams that come together only the last one stays
        self.changed.set()
        if older is not None:
            await older.close("the same device connected again", linger=GOODBYE_SECONDS)
        return peer

    async def tell(self, control: Control) -> None:
        """Send a control message to all devices that can be asked for things, to all at the same time."""
        await asyncio.gather(*(peer.tell(control) for peer in self.present()))

    async def close(self, peers: Collection[Peer], reason: str, *, final: bool = False, refused: bool = False) -> None:
        """Say goodbye to these devices, to all at the same time."""
        await asyncio.gather(*(peer.close(reason, final=final, refused=refused) for peer in peers))

    def detach(self, peer: Peer) -> None:
        """This stream of a device has ended; the device may be back by another stream already."""
        peer.gone()
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
        return [peer for peer in self.here.values() if peer.introduced and not peer.closed.is_set()]
