"""The server's rounds over a network: whose batch is next, its release, evaluation, checkpoints.

One round is worked on at a time; several may wait for the disk together, and a release is sent when its row is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import torch
from msgspec import Struct
from xxhash import xxh3_128_digest

from dpzv.config import Config
from dpzv.errors import PeerError
from dpzv.network.transport import Peer, Peers
from dpzv.network.wire import Ask, pack_message
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Release
from dpzv.protocol.server import Server
from dpzv.runtime.gate import Gate
from dpzv.runtime.journal import Journal
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import exactly

__all__ = ["Batch", "Rounds"]

LOG = logging.getLogger("dpzv.server")
EVALUATION_SECONDS = 120.0
"""How long a device may take to send its test embeddings before the run goes on with those it sent last."""


class Batch(Struct, frozen=True):
    """A frame that waits for its turn, decoded, and who sent it."""

    peer: Peer
    message: Embeddings
    frame: bytes


class _Answered(Struct, frozen=True):
    """A round whose release is made."""

    batch: Batch
    release: Release
    answer: bytes
    digest: bytes


class Rounds:
    """Rounds 1 to T of a run whose table is filled. `arrived` and `evaluated` are called by the sessions."""

    def __init__(
        self,
        config: Config,
        server: Server,
        codecs: tuple[Codec, ...],
        gate: Gate,
        journal: Journal,
        folder: RunFolder,
        peers: Peers,
    ) -> None:
        self._config, self._server, self._codecs = config, server, codecs
        self._gate, self._journal, self._folder, self._peers = gate, journal, folder, peers
        self.stopping = False
        self._news = peers.changed
        self._waiting: dict[int, Batch] = {}
        self._tests: dict[int, list[Evaluation]] = {}
        self._incoming: dict[int, list[Evaluation]] = {}
        self._open = False  # whether a round may begin now
        self._last = time.monotonic()  # when the last one began
        self._answered: _Answered | None = None  # a round whose release is on its way, but which is not closed yet
        self._unsent: list[_Answered] = []  # releases that are not durable yet
        self._scheduled = False  # whether they will be soon
        self._sending: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None

    def arrived(self, batch: Batch) -> bytes:
        """A device sent a batch, one at a time and the next of its schedule; its round begins now if it may.

        The answer, if there is one at once, for the caller to send; it is sent from here if it comes later.
        """
        m = batch.peer.m
        self._close()
        self._server.check(batch.message)
        if m in self._waiting and self._waiting[m].peer is batch.peer:
            raise PeerError(f"device {m} sent a batch before the release of its last one; the peer is closed.")
        self._waiting[m] = batch
        return self._go_on(batch.peer)

    def evaluation(self, message: Evaluation) -> None:
        """A chunk of test embeddings that were asked for."""
        D_test, chunks = self._journal.D_test, self._incoming.get(message.m)
        if chunks is None:
            raise PeerError(f"device {message.m} sent test embeddings that nobody asked for; the peer is closed.")
        self._server.check_evaluation(message, D_test)
        if sum(len(chunk.h) for chunk in chunks) + len(message.h) > D_test:
            raise PeerError(f"device {message.m} sent more than {D_test} test embeddings; the peer is closed.")
        self._journal.meter.bytes_eval += self._codecs[message.m - 1].row_bytes(message.h.shape[1]) * len(message.h)
        chunks.append(message)

    def evaluated(self, m: int) -> None:
        """Device m has sent all its test embeddings."""
        chunks = self._incoming.pop(m, None)
        if chunks is None or sum(len(chunk.h) for chunk in chunks) != self._journal.D_test:
            raise PeerError(
                f"device {m} must send {self._journal.D_test} test embeddings when asked; the peer is closed."
            )
        self._tests[m] = chunks
        self._notify()

    @property
    def has_tests(self) -> bool:
        """Whether every device has sent its test embeddings."""
        return len(self._tests) == self._gate.plan.M

    def stop(self) -> None:
        """End after the round at hand, with a checkpoint."""
        self.stopping = True
        self._notify()

    async def run(self) -> bool:
        """All rounds; false if stopped before the last."""
        T, every = self._gate.plan.T, self._config.train.eval_every
        while self._server.t < T and not self.stopping:
            before, self._open, self._last = self._server.t, True, time.monotonic()
            self._go_on()  # with what came meanwhile
            while self._open and not self.stopping:
                await self._wait(self._left())
            self._open = False
            await self._send_all()
            if self._server.t > before and (self._server.t % every == 0 or self._server.t == T):
                await self.evaluate()
            if self._journal.checkpoint_due:
                self._journal.save([], [])
        if T == 0:
            self._server.train_head(self._gate.head_steps(0))
        self._journal.save([], [])
        return self._server.t >= T

    async def evaluate(self) -> None:
        """Ask all that are there for test embeddings, and measure with what came; absent ones keep their last."""
        asked = self._peers.present()
        before = {peer.m: self._tests.pop(peer.m, None) for peer in asked}
        for peer in asked:
            self._incoming[peer.m] = []
            await peer.tell(Ask("evaluate"))
        deadline = time.monotonic() + EVALUATION_SECONDS
        # one that is lost meanwhile is not waited for: it would have to be asked again
        while any(peer.m not in self._tests and not peer.closed.is_set() for peer in asked):
            await self._wait(deadline - time.monotonic())
            if time.monotonic() > deadline:
                LOG.warning("test embeddings did not come in time; the last ones are used")
                break
        for m, last in before.items():
            if m not in self._tests and last is not None:
                self._tests[m] = last
        self._journal.evaluate(self.test_rows(), self._journal.seconds)
        assert self._journal.metrics is not None
        LOG.info("round %d of %d: %s", self._server.t, self._gate.plan.T, self._journal.metrics.text())

    def test_rows(self) -> torch.Tensor:
        """The test rows of all devices, as last sent."""
        messages = [message for chunks in self._tests.values() for message in chunks]
        return self._server.evaluation_rows(messages, self._journal.D_test)

    def _go_on(self, own: Peer | None = None) -> bytes:
        """Begin all rounds that may begin. Whoever is ready soon shares their commit, if somebody can be.

        The answer to `own`, if it is ready.
        """
        while (batch := self._next()) is not None:
            try:
                self._round(batch)
            except PeerError as error:
                LOG.warning("device %d is closed: %s", batch.peer.m, error)
                self._start(batch.peer.close(str(error)))
            except Exception as error:  # a fault of ours, whoever's batch it was
                self._fail(error)
        if not self._unsent:
            return b""
        if own is not None and (not self._gate.ledger.durable or len(self._unsent) == len(self._peers)):
            return self._commit(own)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._commit)
        return b""

    def _next(self) -> Batch | None:
        """The batch of the next round, if there is one that may go."""
        if not self._waiting:
            return None
        self._close()
        while self._open and not self.stopping and (m := self._whose_turn()) is not None:
            batch = self._waiting.pop(m)
            if not batch.peer.closed.is_set():
                return batch
        return None

    def _left(self) -> float:
        """How long to wait for a device; refuses to wait longer than the operator wants."""
        left = self._config.network.patience - (time.monotonic() - self._last)
        if left <= 0 and self._config.network.late == "stop":
            raise PeerError(
                f"no device that the run needs came within {self._config.network.patience:g} s; everything up to "
                "here is kept: start the parties again."
            )
        return min(60.0, left) if left > 0 else 60.0

    def _whose_turn(self) -> int | None:
        """The device whose batch goes next, or `None` if it is not there yet."""
        M, server, most = len(self._server.positions), self._server, self._config.network.max_delay
        if self._config.network.order == "turns":
            m = server.t % M + 1
            return m if m in self._waiting else None
        if most:
            late = [m for m in range(1, M + 1) if server.t - server.times[m - 1] >= most + M]
            if late:
                return next((m for m in late if m in self._waiting), None)
        return next(iter(self._waiting), None)

    def _round(self, batch: Batch) -> None:
        """Ask and gate; the release is sent when it is durable, and the round is closed when that has begun."""
        server = self._server
        self._last = time.monotonic()
        pending = server.ask(batch.message, self._gate.contributes(server.t + 1, batch.message))
        digest = xxh3_128_digest(memoryview(batch.frame)[1:])
        release = self._gate.submit(pending, digest)
        answer = pack_message(self._codecs[batch.peer.m - 1], release)
        self._answered = _Answered(batch, release, answer, digest)
        self._unsent.append(self._answered)

    def _commit(self, own: Peer | None = None) -> bytes:
        """Make all queued releases durable at once, then send them, all but that to `own`, which is returned.

        It blocks for one write to the disk: nothing could be released meanwhile, and gRPC's threads go on receiving.
        """
        group, self._unsent, self._scheduled, answer = self._unsent, [], False, b""
        if not group:
            return answer
        try:
            self._gate.ledger.wait(group[-1].release.t)
        except Exception as error:
            self._fail(error)
            return answer
        for one in group:
            if one.batch.peer is own:
                answer = one.answer
            else:
                self._start(one.batch.peer.send(one.answer))
        asyncio.get_running_loop().call_soon(self._close)  # when they are on their way
        return answer

    def _close(self) -> None:
        """End the round at hand: the table and w_0 move on, and what happened is written down."""
        one, self._answered = self._answered, None
        if one is None:
            return
        server, meter, every = self._server, self._journal.meter, self._config.train.eval_every
        message, release = one.batch.message, one.release
        try:
            server.accept(release, self._gate.head_steps(release.t))
            self._folder.transcript(release.t, release.m, exactly(release.Delta), one.digest.hex())
        except Exception as error:
            self._fail(error)
            return
        codec, B, width = self._codecs[release.m - 1], *message.h[0].shape
        meter.bytes_up += len(one.batch.frame) - 1
        meter.bytes_down += len(one.answer) - 1
        meter.payload_bytes += codec.embeddings_bytes(B, width, len(message.h)) + codec.answer_bytes(len(release.Delta))
        if server.t % every == 0 or server.t == self._gate.plan.T or self._journal.checkpoint_due:
            self._open = False
            self._notify()

    async def _send_all(self) -> None:
        """Send what is queued, and wait until it is out; no round is open then."""
        if self._unsent:
            self._commit()
        self._close()
        while self._sending:
            await asyncio.wait(self._sending)
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        """Let `run` end with this."""
        self._failure, self._open = error, False
        self._notify()

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # not a lost device: a fault of ours
            self._fail(error)

    def _notify(self) -> None:
        self._news.set()

    async def _wait(self, seconds: float) -> None:
        """Until something happens, or for so long."""
        late = asyncio.get_running_loop().call_later(seconds, self._notify)  # `wait_for` costs a task each time
        try:
            await self._news.wait()
        finally:
            late.cancel()
        self._news.clear()
