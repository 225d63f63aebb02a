"""Test embeddings at the server of a networked run: asked for, taken in order, and waited for while they come.

If a device stops sending them, the log names it, its link is closed, and the run goes on. A late answer therefore
arrives on a closed link, and cannot be mistaken for the answer to a later request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from dpzv.errors import PeerError
from dpzv.network.transport import SLOWEST_LINE, Peer, Peers
from dpzv.network.wire import BATCHES, Ask
from dpzv.protocol.bounds import LARGEST, within
from dpzv.protocol.messages import Evaluation
from dpzv.runtime.checkpoint import load_tests, save_tests
from dpzv.runtime.server_run import ServerRun

__all__ = ["Evaluations"]

LOG = logging.getLogger("dpzv.server")
LONGEST, SHORTEST = 120.0, 5.0
"""The most and the fewest seconds that a device may take for the next part of its test embeddings."""
ROUNDS = 8
"""A part of test embeddings may take as long as this many rounds, though it is no more work than two."""
LINE = 2 * SLOWEST_LINE
"""The lowest rate, in bytes a second, at which a line may carry a part and the batch that is sent before it."""


class _Coming:
    """What a device has sent so far of what it was asked for, and when the last part of it came."""

    def __init__(self) -> None:
        self.parts: list[Evaluation] = []
        self.rows = 0
        self.began = self.last = time.monotonic()


class Evaluations:
    """The test embeddings of all devices, as last sent, and those that are on their way.

    `start` begins to say something to a device; its link may be stuck, so nobody waits for this.
    """

    def __init__(self, run: ServerRun, peers: Peers, start: Callable[[Coroutine[Any, Any, Any]], None]) -> None:
        self._run, self._peers, self._start = run, peers, start
        self._names = run.config.network.devices
        self._here: dict[int, list[Evaluation]] = {}
        self._coming: dict[Peer, _Coming] = {}
        self._silent: set[int] = set()  # devices that did not answer when they were asked last

    @property
    def tests(self) -> list[Evaluation]:
        """The test embeddings of all devices, as last sent."""
        return [message for parts in self._here.values() for message in parts]

    @property
    def missing(self) -> set[int]:
        """The devices whose test embeddings are not here, without those that did not answer when they were asked."""
        return set(range(1, self._run.plan.M + 1)) - self._here.keys() - self._silent

    @property
    def awaited(self) -> set[int]:
        """The devices that were asked and have not sent everything yet."""
        return {peer.m for peer in self._coming}

    def keep(self) -> None:
        """Write the test embeddings to the disk: from here on the run can end without any device."""
        save_tests(self._run.folder.tests, self.tests)

    def restore(self) -> bool:
        """Take the test embeddings from the disk; false if the rounds are not over or there are none."""
        if not self._run.done or not self._run.folder.tests.exists():
            return False
        for message in load_tests(self._run.folder.tests):
            self._here.setdefault(message.m, []).append(message)
        return True

    def take(self, peer: Peer, message: Evaluation, size: int) -> None:
        """The next part of what a device was asked for, which came in a frame of `size` bytes."""
        run, coming = self._run, self._coming.get(peer)
        if coming is None:
            raise PeerError(f"device {peer.m} sent test embeddings that nobody asked for; the link is closed.")
        run.server.check_evaluation(message, run.D_test)
        if message.start != coming.rows or not len(message.h):
            raise PeerError(
                f"device {peer.m} must send test row {coming.rows} next, got {len(message.h)} rows from "
                f"{message.start} on; the link is closed."
            )
        run.journal.meter.bytes_eval += size
        coming.parts.append(message)
        coming.rows += len(message.h)
        coming.last = time.monotonic()

    def ends(self, peer: Peer) -> None:
        """A device says that it has sent all its test embeddings."""
        coming, D_test = self._coming.get(peer), self._run.D_test
        if coming is None or coming.rows != D_test:
            raise PeerError(f"device {peer.m} must send {D_test} test embeddings when asked; the link is closed.")
        del self._coming[peer]
        self._here[peer.m] = coming.parts
        self._silent.discard(peer.m)
        if beyond := sum(int(np.count_nonzero(~within(part.h))) for part in coming.parts):
            LOG.warning(
                "device %d (%s): %d of %d test embeddings are not finite or beyond %g; they count as zeros",
                *(peer.m, self._names[peer.m - 1], beyond, D_test, LARGEST),
            )
        self._peers.changed.set()

    async def collect(self, pace: Mapping[int, float], stopping: Callable[[], bool]) -> bool:
        """Ask the connected devices, and wait while something comes; false if stopped before.

        `pace` is how many seconds the last round of a device took. What does not come stays as it was sent last.
        """
        asked = self._peers.present()
        for peer in asked:
            self._coming[peer] = _Coming()
            self._start(peer.tell(Ask("evaluate")))
        while not stopping():
            # a device that is lost meanwhile is not waited for: it would have to be asked again
            due = {
                peer: self._due(peer, pace.get(peer.m, 0.0))
                for peer in asked
                if peer in self._coming and not peer.closed.is_set()
            }
            now = time.monotonic()
            for peer in [peer for peer, moment in due.items() if moment <= now]:
                del due[peer]
                self._give_up(peer, now)
            if not due:
                break
            await self._peers.news(min(due.values()) - now)
        self._coming.clear()
        return not stopping()

    def _due(self, peer: Peer, pace: float) -> float:
        """The moment at which the next part must be here.

        Before the rounds a part has the longest time: no round waits for it, and no pace is known. A part with fewer
        rows than it should have gives a device only as much more time as it has rows.
        """
        run, coming = self._run, self._coming[peer]
        B, width = run.plan.B, run.server.table.widths[peer.m - 1]
        part = BATCHES * B
        line = (run.codecs[peer.m - 1].longest(B, width) + 4 * min(part, run.D_test) * width) / LINE
        seconds = min(LONGEST, max(SHORTEST, ROUNDS * pace) + line) if run.begun else LONGEST
        return min(coming.last, coming.began + seconds * coming.rows / part) + seconds

    def _give_up(self, peer: Peer, now: float) -> None:
        coming = self._coming.pop(peer)
        self._silent.add(peer.m)
        LOG.warning(
            "device %d (%s) was asked for %d test embeddings and has sent %d in %.0f s: its link is closed, and the "
            "run goes on with those it sent before",
            *(peer.m, self._names[peer.m - 1], self._run.D_test, coming.rows, now - coming.began),
        )
        self._start(self._close(peer))

    async def _close(self, peer: Peer) -> None:
        await peer.close(f"device {peer.m} did not send its test embeddings in time; the link is closed.")
        self._peers.detach(peer)
