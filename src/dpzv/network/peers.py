"""The devices that are connected to the server, each by one stream at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dpzv.network.link import LOST, Stream
from dpzv.network.wire import Control, Stop, pack

__all__ = ["Peer", "Peers"]


class Peer:
    """One connected device."""

    def __init__(self, m: int, stream: Stream) -> None:
        self.m, self.stream = m, stream
        self._writing = asyncio.Lock()
        self.closed = asyncio.Event()
        self.introduced = (
            False  # whether it knows its rows and has all its releases, so that it can be asked for things
        )

    async def send(self, frame: bytes) -> bool:
        """Send a frame; false if the device is gone."""
        async with self._writing:
            if self.closed.is_set():
                return False
            try:
                await self.stream.write(frame)
            except LOST:
                self.closed.set()
                return False
        return True

    async def tell(self, control: Control) -> bool:
        """Send a control message."""
        return await self.send(pack(control))

    async def close(self, reason: str, *, final: bool = False) -> None:
        """Say why, and end the stream."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.tell(Stop(reason, final)), 5)
        self.closed.set()


class Peers:
    """Who is there. `changed` is set whenever somebody comes or goes."""

    def __init__(self) -> None:
        self._here: dict[int, Peer] = {}
        self.changed = asyncio.Event()

    async def attach(self, m: int, stream: Stream) -> Peer:
        """Device m is there; an older stream of the same device is closed."""
        older = self._here.pop(m, None)
        if older is not None:
            await older.close("the same device connected again")
        peer = self._here[m] = Peer(m, stream)
        self.changed.set()
        return peer

    def detach(self, peer: Peer) -> None:
        """Device m is gone, unless it is back by another stream already."""
        peer.closed.set()
        if self._here.get(peer.m) is peer:
            del self._here[peer.m]
        self.changed.set()

    def __len__(self) -> int:
        return len(self._here)

    def present(self) -> list[Peer]:
        """All that are there and can be asked for things."""
        return [peer for peer in self._here.values() if peer.introduced]

    def everybody(self) -> list[Peer]:
        """All that are there."""
        return list(self._here.values())
