"""Drives the server's run over a network: batches arrive, wait for their turn, and share commits to the disk.

One round is worked on at a time. Several releases may wait for the same write to the disk, and each is sent only when
its row of the ledger is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from dpzv.errors import PeerError
from dpzv.metrics import headline_text
from dpzv.network.evaluations import Evaluations
from dpzv.network.transport import Peer, Peers
from dpzv.network.wire import RELEASE
from dpzv.protocol.bounds import LARGEST
from dpzv.protocol.messages import Embeddings
from dpzv.runtime.server_run import Opened, ServerRun

__all__ = ["Arrivals", "Arrived"]

LOG = logging.getLogger("dpzv.server")
NOTICE_SECONDS = 60.0
"""When a round has waited so long for a device, the log says so."""


class Arrived(Struct, frozen=True):
    """A batch that waits for its turn: who sent it, what it says, and its frame without the first byte."""

    peer: Peer
    message: Embeddings
    frame: memoryview


class Arrivals:
    """Rounds 1 to T of a run whose table is filled; `evaluations` has the devices' test embeddings."""

    def __init__(self, run: ServerRun, peers: Peers) -> None:
        self._run, self._peers = run, peers
        self.stopping = False
        self._waiting: dict[int, Arrived] = {}
        self.evaluations = Evaluations(run, peers, self._start)
        self._sent_at: dict[int, float] = {}  # by device: when its last release was sent
        self._pace: dict[int, float] = {}  # by device: seconds from a release to its next batch
        self._zeroed = list(run.server.zeroed)  # rows beyond the bound that the log has told of
        self._open = False  # whether a round may begin now
        self._last = time.monotonic()  # when the last round began
        self._noticed = -1  # the last round after which the log told of a wait
        self._unclosed: Opened | None = None  # a round whose release is on its way, but which is not closed yet
        self._unsent: list[tuple[Peer, Opened]] = []  # releases that are not durable yet, and who waits for each
        self._scheduled = False  # whether a call of `_commit` is scheduled
        self._sending: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None

    def arrived(self, batch: Arrived) -> bytes:
        """A device sent the next batch of its schedule; its round begins now if it may.

        Returns the answer if it is ready at once, and the caller sends it. Later answers are sent from here.
        """
        m = batch.peer.m
        self._close()
        if (sent := self._sent_at.pop(m, None)) is not None:
            self._pace[m] = time.monotonic() - sent
        self._run.server.check(batch.message)
        if m in self._waiting and self._waiting[m].peer is batch.peer:
            raise PeerError(f"device {m} sent a batch before the release of its last one; the link is closed.")
        self._waiting[m] = batch
        return self._go_on(batch.peer)

    def stop(self) -> None:
        """End after the current round, with a checkpoint."""
        self.stopping = True
        self._peers.changed.set()

    async def run(self) -> bool:
        """All rounds; false if stopped before the last."""
        run = self._run
        while not run.done and not self.stopping:
            self._open, self._last = True, time.monotonic()
            self._go_on()  # with the batches that came meanwhile
            while self._open and not self.stopping:
                await self._peers.news(self._left())
            self._open = False
            await self._send_all()
            if run.evaluation_due and not self.stopping:
                await self.evaluate()
            if run.checkpoint_due:
                run.save()
        if run.plan.T == 0:
            run.train_head_alone()
        run.save()
        return run.done

    async def evaluate(self) -> bool:
        """Ask the connected devices for test embeddings, and measure; false if stopped before."""
        run = self._run
        if not await self.evaluations.collect(self._pace, lambda: self.stopping):
            return False
        run.evaluate(self.evaluations.tests, run.journal.seconds)
        assert run.journal.metrics is not None
        LOG.info("round %d of %d: %s", run.server.t, run.plan.T, headline_text(run.journal.metrics))
        for m, (told, now) in enumerate(zip(self._zeroed, run.server.zeroed, strict=True), 1):
            if now > told:
                LOG.warning(
                    "device %d (%s): %d rows of embeddings are not finite or beyond %g; they count as zeros",
                    *(m, run.config.network.devices[m - 1], now - told, LARGEST),
                )
        self._zeroed = list(run.server.zeroed)
        return True

    def _go_on(self, own: Peer | None = None) -> bytes:
        """Begin all rounds that may begin now, and see that their releases are committed and sent.

        Devices whose batches come within the same turn of the event loop share a commit. The commit is made at once
        if it costs nothing, or if every connected device has a release in it; then the answer to `own` is returned.
        """
        while (batch := self._next()) is not None:
            try:
                self._last = time.monotonic()
                self._unclosed = self._run.begin(batch.message, batch.frame)
                self._unsent.append((batch.peer, self._unclosed))
            except PeerError as error:
                LOG.warning("device %d is closed: %s", batch.peer.m, error)
                self._start(batch.peer.close(str(error)))
            except Exception as error:  # the server's own fault, not the device's
                self._fail(error)
        if not self._unsent:
            return b""
        if own is not None and (not self._run.ledger.durable or len(self._unsent) == len(self._peers.here)):
            return self._commit(own)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._commit)
        return b""

    def _next(self) -> Arrived | None:
        """The batch of the next round, or `None` if no round may begin, or the device that must be next is missing."""
        if not self._waiting:
            return None
        self._close()
        for m in self._first() or list(self._waiting):
            if m in self._waiting and self._open and not self.stopping and self._run.has_round(m):
                batch = self._waiting.pop(m)
                if not batch.peer.closed.is_set():
                    return batch
        return None

    def _first(self) -> list[int]:
        """The devices of which one must be next; if the list is empty, the oldest batch is next."""
        M, server, network = self._run.plan.M, self._run.server, self._run.config.network
        if network.order == "turns":
            return [server.t % M + 1]
        if not network.max_delay:
            return []
        late = [m for m in range(1, M + 1) if server.t - server.times[m - 1] >= network.max_delay + M]
        return [m for m in late if self._run.has_round(m)]

    @property
    def awaited(self) -> list[int]:
        """The devices that the next round waits for, one of which must come; none if it need not wait."""
        able = self._first() or [m for m in range(1, self._run.plan.M + 1) if self._run.has_round(m)]
        return [] if self._run.done or any(m in self._waiting for m in able) else able

    def _left(self) -> float:
        """How long to wait for a device; refuses to wait longer than the operator wants."""
        network = self._run.config.network
        waited = time.monotonic() - self._last
        left = network.patience - waited
        if waited > NOTICE_SECONDS and self._noticed != self._run.server.t:
            self._noticed = self._run.server.t
            away = ", ".join(network.devices[m - 1] for m in self.awaited)
            LOG.warning("round %d has waited %.0f s for %s", self._run.server.t + 1, waited, away)
        if left <= 0 and network.late == "stop":
            raise PeerError(
                f"no device that the run needs came within {network.patience:g} s; everything up to here is kept: "
                "start the parties again."
            )
        return min(NOTICE_SECONDS, left) if left > 0 else NOTICE_SECONDS

    def _commit(self, own: Peer | None = None) -> bytes:
        """Make all queued releases durable at once and send them; the one to `own` is returned instead.

        It blocks for one write to the disk: nothing could be released meanwhile, and the transport goes on receiving.
        """
        group, self._unsent, self._scheduled, answer = self._unsent, [], False, b""
        if not group:
            return answer
        try:
            self._run.commit(group[-1][1])
        except Exception as error:
            self._fail(error)
            return answer
        receipts, meter, now = self._run.ledger.receipts, self._run.journal.meter, time.monotonic()
        for peer, opened in group:
            self._sent_at[peer.m] = now
            release = opened.release
            receipt = receipts.make(release.m, release.position, release.t)
            meter.bytes_down += len(receipt)
            if peer is own:
                answer = RELEASE + receipt + opened.answer
            else:
                self._start(peer.send(RELEASE + receipt + opened.answer))
        asyncio.get_running_loop().call_soon(self._close)  # once the releases are on their way
        return answer

    def _close(self) -> None:
        """End the current round, and let no other begin where an evaluation or a checkpoint is due."""
        opened, self._unclosed = self._unclosed, None
        if opened is None:
            return
        try:
            self._run.close(opened)
        except Exception as error:
            self._fail(error)
            return
        if self._run.evaluation_due or self._run.checkpoint_due:
            self._open = False
            self._peers.changed.set()

    async def _send_all(self) -> None:
        """Begin to send all queued releases; then no round is open. Nobody waits for a device to take its release."""
        if self._unsent:
            self._commit()
        self._close()
        await asyncio.sleep(0)  # the tasks that send begin now, so that what is said later to a device comes after it
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        """Let `run` end with this error."""
        self._failure, self._open = error, False
        self._peers.changed.set()

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        # a `Peer` raises nothing when its device is lost, so this is the server's own fault
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
