"""The server's rounds over a network: whose batch is next, its release, evaluation, checkpoints.

One round is worked on at a time; several may wait for the disk together, and a release is sent when its row is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import torch
from xxhash import xxh3_128_digest

from dpzv.config import Config
from dpzv.errors import PeerError
from dpzv.network.peers import Peer, Peers
from dpzv.network.wire import Ask, pack_message
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Release
from dpzv.protocol.server import Server
from dpzv.runtime import checkpoint
from dpzv.runtime.book import Book
from dpzv.runtime.gate import Gate
from dpzv.runtime.record import RunFolder
from dpzv.runtime.simulate import exactly

__all__ = ["Batch", "Rounds"]

LOG = logging.getLogger("dpzv.server")
EVALUATION_SECONDS = 120.0
"""How long a device may take to send its test embeddings before the run goes on with those it sent last."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A frame that waits for its turn, decoded, and who sent it."""

    peer: Peer
    message: Embeddings
    frame: bytes


class Rounds:
    """Rounds 1 to T of a run whose table is filled. `arrived` and `evaluated` are called by the sessions."""

    def __init__(
        self,
        config: Config,
        server: Server,
        codecs: tuple[Codec, ...],
        gate: Gate,
        book: Book,
        folder: RunFolder,
        peers: Peers,
    ) -> None:
        self._config, self._server, self._codecs = config, server, codecs
        self._gate, self._book, self._folder, self._peers = gate, book, folder, peers
        self.stopping = False
        self._news = peers.changed
        self._waiting: dict[int, Batch] = {}
        self._tests: dict[int, list[Evaluation]] = {}
        self._incoming: dict[int, list[Evaluation]] = {}
        self._unsent: list[tuple[Peer, Release, bytes]] = []  # releases that are not durable yet
        self._sending: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._saved = time.monotonic()

    def arrived(self, batch: Batch) -> None:
        """A device sent a batch; one at a time, and the next of its schedule."""
        m = batch.peer.m
        self._server.check(batch.message)
        if m in self._waiting and self._waiting[m].peer is batch.peer:
            raise PeerError(f"device {m} sent a batch before the release of its last one; the peer is closed.")
        self._waiting[m] = batch
        self._notify()

    def evaluation(self, message: Evaluation) -> None:
        """A chunk of test embeddings that were asked for."""
        D_test, chunks = self._book.D_test, self._incoming.get(message.m)
        if chunks is None:
            raise PeerError(f"device {message.m} sent test embeddings that nobody asked for; the peer is closed.")
        self._server.check_evaluation(message, D_test)
        if sum(len(chunk.h) for chunk in chunks) + len(message.h) > D_test:
            raise PeerError(f"device {message.m} sent more than {D_test} test embeddings; the peer is closed.")
        self._book.meter.bytes_eval += self._codecs[message.m - 1].row_bytes(message.h.shape[1]) * len(message.h)
        chunks.append(message)

    def evaluated(self, m: int) -> None:
        """Device m has sent all its test embeddings."""
        chunks = self._incoming.pop(m, None)
        if chunks is None or sum(len(chunk.h) for chunk in chunks) != self._book.D_test:
            raise PeerError(f"device {m} must send {self._book.D_test} test embeddings when asked; the peer is closed.")
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
            batch = await self._next()
            if batch is None:
                break
            await self._round(batch)
            if self._server.t % every == 0 or self._server.t == T:
                await self._send_all()
                await self.evaluate()
            if time.monotonic() - self._saved > self._config.runtime.checkpoint_seconds:
                self.save()
        await self._send_all()
        if T == 0:
            self._server.train_head(self._gate.head_steps(0))
        self.save()
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
        self._book.evaluate(self.test_rows(), self._book.seconds)
        assert self._book.metrics is not None
        LOG.info("round %d of %d: %s", self._server.t, self._gate.plan.T, self._book.metrics.text())

    def test_rows(self) -> torch.Tensor:
        """The test rows of all devices, as last sent."""
        messages = [message for chunks in self._tests.values() for message in chunks]
        return self._server.evaluation_rows(messages, self._book.D_test)

    def save(self) -> None:
        """Make ledger and logs durable, then write the checkpoint."""
        self._gate.ledger.flush()
        server, book = self._server, self._book
        progress = checkpoint.Progress(
            t=server.t,
            positions=server.positions,
            times=server.times,
            delays=server.delays,
            clock=[],
            meter=book.meter,
            seconds=book.seconds,
            targets=book.targets,
            lengths=self._folder.lengths(),
        )
        checkpoint.save(self._folder.checkpoint, [], server, progress)
        self._saved = time.monotonic()

    async def _next(self) -> Batch | None:
        """The batch of the next round, as soon as there is one that may go; `None` if stopped."""
        since = time.monotonic()
        while not self.stopping:
            if self._failure is not None:
                raise self._failure
            gone = [m for m, batch in self._waiting.items() if batch.peer.closed.is_set()]
            for number in gone:
                del self._waiting[number]
            m = self._whose_turn()
            if m is not None:
                return self._waiting.pop(m)
            if self._unsent:
                self._commit()
                continue
            left = self._config.network.patience - (time.monotonic() - since)
            if left <= 0 and self._config.network.late == "stop":
                raise PeerError(
                    f"no device that the run needs came within {self._config.network.patience:g} s; everything up to "
                    "here is kept: start the parties again."
                )
            await self._wait(min(60.0, left) if left > 0 else 60.0)
        return None

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

    async def _round(self, batch: Batch) -> None:
        """Ask, gate, accept; the release is sent when it is durable."""
        m, server, meter = batch.peer.m, self._server, self._book.meter
        codec = self._codecs[m - 1]
        try:
            pending = server.ask(batch.message, self._gate.contributes(server.t + 1, batch.message))
        except PeerError as error:
            LOG.warning("device %d is closed: %s", m, error)
            await batch.peer.close(str(error))
            return
        digest = xxh3_128_digest(memoryview(batch.frame)[1:])
        release = self._gate.submit(pending, digest)
        server.accept(release, self._gate.head_steps(release.t))
        answer = pack_message(codec, release)
        self._unsent.append((batch.peer, release, answer))
        self._folder.transcript(release.t, m, exactly(release.Delta), digest.hex())
        meter.bytes_up += len(batch.frame) - 1
        meter.bytes_down += len(answer) - 1
        width, arrays = batch.message.h[0].shape[1], len(batch.message.h)
        meter.payload_bytes += codec.embeddings_bytes(pending.B, width, arrays) + codec.answer_bytes(len(release.Delta))

    def _commit(self) -> None:
        """Make all queued releases durable at once, then send them; done whenever no further batch can go.

        It blocks for one write to the disk: nothing could be released meanwhile, and gRPC's threads go on receiving.
        """
        group, self._unsent = self._unsent, []
        self._gate.ledger.wait(group[-1][1].t)
        for peer, _, answer in group:
            self._start(peer.send(answer))

    async def _send_all(self) -> None:
        """Send what is queued, and wait until it is out."""
        if self._unsent:
            self._commit()
        while self._sending:
            await asyncio.wait(self._sending)

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and task.exception() is not None:  # not a lost device: a fault of ours
            self._failure = task.exception()
            self._notify()

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
