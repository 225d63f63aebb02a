"""The server of a networked run: it meets the devices, aligns records, fills its table, and works through the rounds.

Every device has one stream. The transport verifies the name of the device, so a device can only act as itself. The link
of a device that breaks the protocol is closed, and the run goes on. The device may come back, and then it goes on at
its position in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack, suppress
from typing import Any

from dpzv.config import Config
from dpzv.errors import DataError, DiskError, DpzvError, PeerError, PeerRefused
from dpzv.network import wire
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.arrivals import Arrivals, Arrived
from dpzv.network.beginning import align, alignment_of, hear_ids, open_aside, open_run, tell_rows
from dpzv.network.greeting import ROLLED_BACK, check_return, greet
from dpzv.network.status import DeviceStatus, Status, keep_status, notify_supervisor, status_of, write_status
from dpzv.network.transport import (
    GOODBYE_SECONDS,
    LinkLost,
    Listener,
    Peer,
    Peers,
    Stream,
    last_word,
)
from dpzv.protocol.messages import Embeddings, Evaluation, Fill
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.server_run import ServerRun

__all__ = ["ServerParty"]

LOG = logging.getLogger("dpzv.server")
FAREWELL_SECONDS = 40.0
"""How long the server of a finished run waits for devices that are away, to tell them that it is finished."""
STOPPING, FINISHED = "the server stops; come back later", "the run is finished"
UNALIGNED = "the parties' records could not be aligned; the server's log says why."


class ServerParty:
    """The server of a run, with its labels and its run folder."""

    def __init__(self, config: Config, labels: LabelRecords, folder: RunFolder) -> None:
        self._config, self._labels, self._folder = config, labels, folder
        self._names = config.network.devices
        self._alignment = alignment_of(config, labels, folder)
        self._peers = Peers()
        self._run: ServerRun | None = None
        self._arrivals: Arrivals | None = None
        self._aligned = asyncio.Event()
        self._stopping = self._finished = self._closing = False
        self._unaligned = False  # whether the parties share too few records for a run
        self._failure: DpzvError | None = None
        self._refused: dict[int, str] = {}  # by device: why it was refused for good when it came last
        self._told: set[int] = set()  # devices that know that the run is finished, and have kept their weights

    async def run(self, listener: Listener) -> dict[str, Any] | None:
        """Listen, train to the end and return the summary, or `None` if stopped before (it can be started again)."""
        await listener.start(self._talk)
        LOG.info("listening on %s for %s", listener.address, ", ".join(self._names))
        notify_supervisor("READY=1")
        watching = asyncio.create_task(keep_status(self._folder.path, self.status))
        try:
            with ExitStack() as stack:
                stack.callback(setattr, self, "_closing", True)  # no device may be heard once the ledger is closed
                if not await self._align():
                    return None
                LOG.info("records: %s", self._alignment.counts)
                self._run = run = await open_aside(self._config, self._open, stack)
                self._arrivals = arrivals = Arrivals(run, self._peers)
                # after a restart the rounds may be over, and only devices that were away must still hear of it
                self._finished = self._folder.finished or arrivals.evaluations.restore()
                self._aligned.set()
                trained = self._finished or await self._train(run, arrivals)
                if self._failure is not None:
                    raise self._failure
                if not trained:
                    return None
                await self._farewell()
                if self._folder.finished:
                    summary = self._folder.read_summary()
                else:  # in a thread: the head may take minutes, and the status must be written meanwhile
                    summary = await asyncio.to_thread(run.finish, arrivals.evaluations.tests, run.journal.seconds)
                await self._wait_for_the_away()
                if self._failure is not None:  # a device that came late showed that the ledger is an old copy
                    raise self._failure
                return summary
        finally:
            notify_supervisor("STOPPING=1")
            reason, refused = (UNALIGNED, True) if self._unaligned else (STOPPING, False)
            await self._peers.close(self._peers.here.values(), reason, refused=refused)
            await listener.stop(2)
            watching.cancel()
            with suppress(DiskError):  # the run's own error, if there is one, must not be hidden by this
                write_status(self._folder.path, self.status())

    def _open(self) -> ServerRun:
        """The run over the aligned records, at its start or at its last checkpoint."""
        return open_run(self._config, self._alignment, self._folder)

    async def _align(self) -> bool:
        """Wait for the devices' ids and find the records that all share; false if stopped before."""
        while not self._alignment.complete and not self._stopping:
            if self._alignment.missing:
                await self._peers.news()
                continue
            try:
                await align(self._alignment)
            except DataError as error:  # its text counts records, so only the server's operator may see it
                LOG.error("%s", error)
                self._unaligned = True
                raise
        if self._failure is not None:
            raise self._failure
        return not self._stopping

    async def _farewell(self) -> None:
        """Tell the devices that are here that the run is finished, and hear their goodbyes.

        The final head is fitted only afterwards, to all labels and without noise: neither what devices are sent nor
        the time at which it is sent may depend on that head.
        """
        here = self._peers.present()
        await self._peers.close(here, FINISHED, final=True)
        deadline = time.monotonic() + GOODBYE_SECONDS
        while any(peer.m not in self._told for peer in here) and time.monotonic() < deadline:
            await self._peers.news(deadline - time.monotonic())

    async def _wait_for_the_away(self) -> None:
        """Wait a little for devices that do not know yet that the run is finished."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        while len(self._told) < len(self._names) and not self._stopping and time.monotonic() < deadline:
            await self._peers.news(deadline - time.monotonic())
        away = [name for m, name in enumerate(self._names, 1) if m not in self._told]
        if away:
            LOG.warning(
                "these devices did not hear that the run is finished: %s; start the server again once they are back",
                ", ".join(away),
            )

    def status(self) -> Status:
        """Where the run is, for its operator."""
        run, here = self._run, self._peers.here
        stage = "waiting for the parties" if run is None else "rounds" if run.begun else "filling the table"
        if self._finished:
            stage = "finished" if self._folder.finished else "final head"
        figures = [(0, 0)] * len(self._names)
        if run is not None:
            figures = [(k, run.server.t - t) for k, t in zip(run.server.positions, run.server.times, strict=True)]
        devices = tuple(
            DeviceStatus(name, m in here, *figures[m - 1], m in self._told, self._refused.get(m, ""))
            for m, name in enumerate(self._names, 1)
        )
        return status_of(run, stage, self._waits(), devices)

    def _waits(self) -> str:
        """Who or what the run waits for now; empty if for nothing."""
        run, arrivals, M = self._run, self._arrivals, len(self._names)
        what, who = "the ids of", self._alignment.missing
        if run is not None and arrivals is not None:
            what, who = "test embeddings of", sorted(arrivals.evaluations.awaited)
            if self._finished:
                what, who = "the end to be heard by", [m for m in range(1, M + 1) if m not in self._told]
            elif not run.ready:
                what, who = "the first embeddings of", [m for m in range(1, M + 1) if run.needs_fill(m)]
            elif run.begun and not who:
                what, who = "a batch of", arrivals.awaited
        return f"{what} {', '.join(self._names[m - 1] for m in who)}" if who else ""

    def stop(self) -> None:
        """End after the current round; everything up to then is kept."""
        self._stopping = True
        self._peers.changed.set()
        if self._arrivals is not None:
            self._arrivals.stop()

    async def _train(self, run: ServerRun, arrivals: Arrivals) -> bool:
        """All that devices take part in; false if stopped before its end."""
        while not run.ready and not self._stopping:
            await self._peers.news()
        if self._stopping:
            return False
        if not run.begun:
            if not await arrivals.evaluate():
                return False
            run.save()
            run.begun = True
            await self._peers.tell(wire.Ask("rounds"))
        if not await arrivals.run():
            return False
        evaluations = arrivals.evaluations
        while missing := evaluations.missing:  # for example, if the server was restarted after the last round
            if arrivals.stopping:
                return False
            if missing <= {peer.m for peer in self._peers.present()}:
                await arrivals.evaluate()
            else:
                await self._peers.news()
        evaluations.keep()
        self._finished = True
        return True

    async def _talk(self, stream: Stream) -> None:
        """One device from its hello to its goodbye."""
        peer: Peer | None = None
        name = stream.peer_name
        try:
            m, hello = await greet(stream, self._config)
            peer = await self._peers.attach(m, stream)
            self._peers.log.write(logging.INFO, f"arrivals of '{name}'", f"device {m} ({name}) is here")
            await self._introduce(peer, hello)
            self._refused.pop(m, None)
            if self._finished:
                await peer.close(FINISHED, final=True)
            await self._listen_to(peer, stream)
            self._goodbye(peer, await last_word(stream))
        except PeerError as error:
            await self._refuse(peer or Peer(0, stream), error)
        except LinkLost as error:
            if peer is None or not peer.closed.is_set():
                who = f"device {peer.m}" if peer else f"'{name}', which had not said hello,"
                said = f"{who} is gone without a goodbye ({error})"
                self._peers.log.write(logging.WARNING, f"lost links of '{name}'", said)
        finally:
            if peer is not None:
                self._peers.detach(peer)

    async def _refuse(self, peer: Peer, error: PeerError) -> None:
        """Close a link with the reason; after a refusal for good the device ends, else it may come back."""
        permanent, stream = isinstance(error, PeerRefused), peer.stream
        name, level = stream.peer_name, logging.ERROR if permanent else logging.WARNING
        self._peers.log.write(level, f"refusals of '{name}'", str(error))
        if permanent and name in self._names:
            self._refused[self._names.index(name) + 1] = str(error)
        await peer.close(str(error), refused=permanent)
        self._peers.detach(peer)
        if name in self._names:  # nothing more is read from strangers
            self._goodbye(peer, await last_word(stream))

    async def _introduce(self, peer: Peer, hello: wire.Hello) -> None:
        """Tell a device its number, align its records, and send it the releases that it has missed."""
        m = peer.m
        if self._folder.finished and await self._knows_the_end(m, hello):
            return
        needs = self._alignment.needs(m, hello.ids_sha256)
        self._alignment.bind(m, hello.digests)
        await peer.tell(wire.Welcome(m, "", "train", needs))
        if needs:
            await hear_ids(peer, hello, self._alignment)
            self._peers.changed.set()
        await self._aligned.wait()
        peer.require_open()
        if needs:  # the ids of an earlier link of this device may have been aligned meanwhile
            self._alignment.needs(m, hello.ids_sha256)
            self._alignment.bind(m, hello.digests)
        run = self._run
        assert run is not None
        if self._closing:
            raise PeerError(STOPPING)
        if (rolled_back := check_return(run.ledger, m, hello)) is not None:
            self._end(rolled_back)
            raise PeerError(ROLLED_BACK)
        await peer.tell(wire.Welcome(m, run.ledger.run_id, "train", False))
        await tell_rows(peer, self._alignment, run.plan.mu_start[m - 1])
        if self._closing:
            raise PeerError(STOPPING)
        for release in run.missed(m, hello.position if hello.run_id else 0):
            receipt = run.ledger.receipts.make(m, release.position, release.t)
            frame = wire.pack_release(run.codecs[m - 1], release, receipt)
            await peer.send(frame)
            peer.require_open()
            run.sent_again(release, len(frame) - 1)
        peer.introduced = True
        self._peers.changed.set()
        if run.needs_fill(m):
            await peer.tell(wire.Ask("fill", start=run.filled_to(m, again=bool(hello.run_id))))
        elif run.begun and not self._finished:
            await peer.tell(wire.Ask("rounds"))

    async def _knows_the_end(self, m: int, hello: wire.Hello) -> bool:
        """Whether a device has the weights at the end of a finished run; its file may then hold other records."""
        await self._aligned.wait()
        assert self._run is not None
        return (hello.run_id, hello.position) == (self._run.ledger.run_id, self._run.server.positions[m - 1])

    async def _listen_to(self, peer: Peer, stream: Stream) -> None:
        """Take what a device sends until it says goodbye."""
        run, arrivals, m = self._run, self._arrivals, peer.m
        assert run is not None
        assert arrivals is not None
        stream.most = max(wire.HELLO_BYTES, run.longest_frame(m, wire.BATCHES) + 1)
        while not peer.closed.is_set():
            frame = await stream.read()
            if frame is None:  # a device that was killed looks like this
                raise LinkLost("the stream ended without a goodbye")
            message = wire.unpack(run.codecs[m - 1], frame)
            if isinstance(message, wire.Stop):
                self._goodbye(peer, message)
                return
            if peer.closed.is_set():  # it was closed meanwhile, for example because the device connected again
                return
            if isinstance(message, (Embeddings, Fill, Evaluation)):
                if message.m != m:
                    raise PeerError(f"device {m} spoke for device {message.m}; its link is closed.")
                if m not in run.ledger.heard:
                    self._hear(run, m)
            if isinstance(message, Embeddings) and run.begun:
                if answer := arrivals.arrived(Arrived(peer, message, memoryview(frame)[1:])):
                    await peer.send(answer)
            elif isinstance(message, Fill):
                run.fill(message, len(frame) - 1)
            elif isinstance(message, Evaluation):
                arrivals.evaluations.take(peer, message, len(frame) - 1)
            elif isinstance(message, wire.Done) and message.what == "fill":
                run.fill_ends(m)
                self._peers.changed.set()
            elif isinstance(message, wire.Done) and message.what == "evaluate":
                arrivals.evaluations.ends(peer)
            else:
                raise PeerError(f"device {m} sent {type(message).__name__} out of turn; its link is closed.")

    def _hear(self, run: ServerRun, m: int) -> None:
        """Note that embeddings of device m are here: a private start that was seen once may not be drawn again."""
        try:
            run.ledger.hear(m)
        except DiskError as error:
            self._end(error)
            raise PeerError(STOPPING) from None

    def _end(self, error: DpzvError) -> None:
        """Let `run` end with this error."""
        self._failure = error
        self.stop()

    def _goodbye(self, peer: Peer, stop: wire.Stop | None) -> None:
        if stop is None:
            return
        said = f"device {peer.m} says goodbye: {wire.shown(stop.reason)}"
        self._peers.log.write(logging.INFO, f"goodbyes of device {peer.m}", said)
        if stop.final and self._finished:
            self._told.add(peer.m)
            self._peers.changed.set()
