"""Private set intersection at the server: which of its own ids a device has, and nothing about any other id.

    device -> server   its ids, hidden by a number d of its own, the first 16 bytes of each, in a secret order
    server -> device   the server's ids, hidden by a number c of its own
    device -> server   the same points times d; the server takes c out again, and then has its own ids hidden by d

The server compares the two lists that are hidden by d. It can compute nothing else with them: it never has d, so it
cannot hide another id in the same way, and two devices hide the same id differently. The device never has c, so it
learns only how many ids the server has. The security is that of the decisional Diffie-Hellman problem on P-256, for
parties that follow the protocol: a server that adds guessed ids to its own can test them, as many as it names.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

import numpy as np
from numpy.typing import NDArray

from dpzv.data.alignment import HASH_BYTES, Fewest, aligned
from dpzv.data.psi import SecretNumber
from dpzv.errors import DataError, PeerError
from dpzv.network.greeting import next_piece
from dpzv.network.logs import LoggedProgress
from dpzv.network.transport import Peer
from dpzv.network.wire import POINTS, Counted, Hidden

__all__ = ["HiddenIds"]

LOG = logging.getLogger("dpzv.server")
AT_ONCE = 8192
"""The ids that are hidden at a time, which takes one core about a second; the work can be stopped only in between."""


class HiddenIds:
    """The server's ids, keyed hashes uint8 [n, 16], hidden once for all devices by a number that is never stored."""

    def __init__(self, hashes: NDArray[np.uint8]) -> None:
        """Raises `ConfigError` if the package that computes points is not installed."""
        self._hashes, self._number = hashes, SecretNumber()
        self._out = self._number.inverse()
        self._points: asyncio.Task[NDArray[np.uint8]] | None = None

    def start(self) -> asyncio.Task[NDArray[np.uint8]]:
        """Begin to hide the ids, or go on; the points, uint8 [n, 32], are what the task returns."""
        if self._points is None:
            self._points = asyncio.create_task(self._made())
        return self._points

    async def known(self, peer: Peer, theirs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A device's list as far as the server may know it: keyed hashes of its own ids, random bytes for all others.

        `theirs` is the list that the device has sent, in which no entry repeats, uint8 [n, 16], and so is the result.
        """
        points = await asyncio.shield(self.start())
        await peer.tell(Hidden(len(points)))
        sending = asyncio.create_task(peer.send_list(points))
        try:
            values = await self._answers(peer, len(points))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        try:
            return await asyncio.to_thread(self._translated, theirs, values)
        except DataError:
            raise PeerError(f"device {peer.m} gave the same answer for two ids; its link is closed.") from None

    async def _answers(self, peer: Peer, count: int) -> NDArray[np.uint8]:
        """The server's ids as this device hides them, uint8 [count, 16]."""
        came, at = Counted(f"the hidden ids that device {peer.m} answers", count, POINTS.itemsize), 0
        values = np.empty((count, HASH_BYTES), np.uint8)
        progress = LoggedProgress(LOG, f"ids are compared with those of device {peer.m}", count)
        while not came.complete:
            points = came.take(await next_piece(peer, "its answers")).reshape(-1, POINTS.itemsize)
            found = await asyncio.to_thread(self._out.times, points)
            values[at : at + len(found)] = found[:, :HASH_BYTES]
            at += len(found)
            progress.tell(at)
        return values

    def _translated(self, theirs: NDArray[np.uint8], values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        own, device = aligned(values, [theirs], least=Fewest(0)).rows
        found = np.frombuffer(bytearray(secrets.token_bytes(theirs.size)), np.uint8).reshape(theirs.shape)
        found[device] = self._hashes[own]
        return found

    async def _made(self) -> NDArray[np.uint8]:
        points = np.empty((len(self._hashes), POINTS.itemsize), np.uint8)
        progress = LoggedProgress(LOG, "the server's ids are hidden", len(points))
        for start in range(0, len(points), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            points[part] = await asyncio.to_thread(self._number.hidden, self._hashes[part])
            progress.tell(min(part.stop, len(points)))
        return points
