"""The server's side of a run: state machine, ledger, gate, journal and folder, opened and closed in one place.

It is driven by a virtual clock (`simulate.py`), in blocks of rounds (`fused_engine.py`), by the arrivals of a network
(`network/arrivals.py`), or by an audit (`attacks/target.py`). A driver calls `fill` and `fill_ends`, then for every
round `begin`, `commit` and `close`; `evaluate` and `save` when they are due; and `finish`. Blocks of rounds are
computed elsewhere, so their driver calls `round_ends` in place of these three. An audit ends its rounds by
`server.accept` alone: it takes no step of the head after them, and writes no transcript. Everything is built from the
plan that the ledger holds.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import torch
from msgspec import Struct
from xxhash import xxh3_128_digest

from dpzv.errors import DataError, PeerError
from dpzv.protocol.messages import CHUNK, Embeddings, Evaluation, Fill, Pending, Release
from dpzv.runtime import checkpoint
from dpzv.runtime.assemble_device import codec_of, schedules_of
from dpzv.runtime.assemble_server import make_server
from dpzv.runtime.journal import Journal, Snapshot, Untrained
from dpzv.runtime.mapped_table import whole
from dpzv.runtime.opening import open_gate
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import ServerParts

__all__ = ["Observer", "Opened", "ServerRun"]

Observer = Callable[[Snapshot], bool]
"""A driver calls it after every round; returning false stops the run, which can be resumed."""

AT_STAKE = 0.02
"""A checkpoint is written when a crash would forfeit this share of a head's steps."""

STALE = 0.05
"""A checkpoint is written after this share of all rounds, too, where devices do not go back with the server: after a
crash its table has old rows in the place of those that came since, until devices are at the same records again."""

AT_ONCE = 1024
"""The rounds that are read from the ledger at once for a device that has missed some; the server waits meanwhile."""


class Opened(Struct, frozen=True):
    """A round between its release and its end.

    `answer` is the frame of the release. It may be sent once the round is committed. `size` is the length of the
    device's frame, and `digest` recognises it.
    """

    message: Embeddings
    pending: Pending
    release: Release
    answer: bytes
    digest: bytes
    size: int


class ServerRun:
    """One run at the server. Use it as a context manager, and call `restore` before anything else.

    `begun` says whether rounds may be answered: the table is filled, and a first checkpoint is written. The end of a
    round sets `evaluation_due` and `checkpoint_due`, which say what its driver has to do before the next one.
    """

    def __init__(self, given: ServerParts, folder: RunFolder) -> None:
        config, records, plan = given.config, given.records, given.plan
        self.config, self.folder, self.D_test = config, folder, len(records.y_test)
        self.begun = self.evaluation_due = self.checkpoint_due = False
        self._saved_t = 0  # the round of the last checkpoint
        self._apart = False  # whether devices are processes of their own, which do not go back with the server
        self._rows: dict[int, int] = {}  # rows of the table that each device has filled so far
        self._filled: set[int] = set()  # devices that have filled all their rows
        # for each device the rounds of its releases, as far as round `_indexed` of the ledger; see `_rounds_of`
        self._rounds, self._indexed = [array("q") for _ in range(plan.M)], -1
        self.schedules = schedules_of(config, plan)
        with ExitStack() as stack:
            self.gate = open_gate(given, folder, self.schedules)
            self.ledger, self.plan = stack.enter_context(self.gate.ledger), self.gate.plan
            stack.enter_context(folder)
            counts = self.gate.label_counts(records.y_train, max(records.outputs, 2))
            self.server = make_server(given, self.schedules, self.plan, counts)
            self.codecs = tuple(codec_of(config, m, self.plan.M) for m in range(1, self.plan.M + 1))
            self.journal = Journal(config, records, self.server, self.gate, folder)
            self._saved = time.monotonic()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def restore(self, beside: checkpoint.Simulated | None = None) -> None:
        """Go back to the last checkpoint, or to the start if there is none yet.

        Simulated devices go back with the server, and the rounds since then are played again: the ledger answers them
        with what it released. Devices that are processes of their own (`beside` is `None`) do not go back. The rounds
        since then are not computed again: their releases stand, their rows in the table stay as old as they were, and
        head steps that were paid for and lost stay paid for.
        """
        self._apart = beside is None
        if not self.folder.checkpoint.exists():
            if beside is None and self.ledger.releases:
                raise DataError(
                    f"{self.folder.checkpoint} is missing, but the ledger has {self.ledger.releases} releases, whose "
                    "table and head are lost with it; put the checkpoint back, or start a new run with another `out`."
                )
            self.folder.cut((0, 0))
            return
        progress = checkpoint.load(self.folder.checkpoint, self.server, beside)
        self.begun, self._saved_t = True, progress.t
        self.journal.meter, self.journal.targets = progress.meter, dict(progress.targets)
        self.journal.seconds_before = progress.seconds
        self.journal.account()
        if self.folder.finished:  # its logs are complete
            return
        self.folder.cut(progress.lengths)
        if beside is None:
            self._catch_up(progress.t)

    @property
    def ready(self) -> bool:
        """Whether every device's rows are in the table, so that rounds may begin."""
        return self.begun or self.config.table.start == "zeros" or len(self._filled) == self.plan.M

    def needs_fill(self, m: int) -> bool:
        """Whether device m must still upload all its train records."""
        return not self.begun and self.config.table.start == "fill" and m not in self._filled

    def filled_to(self, m: int, *, again: bool) -> int:
        """The train record from which device m's fill goes on.

        It is the one after the last chunk that came, if the device still has the weights it had then (`again`), else
        the first.
        """
        if not again:
            self._rows.pop(m, None)
        return self._rows.get(m, 0)

    def fill(self, message: Fill, size: int) -> None:
        """Store a chunk of the first fill, which came in a frame of `size` bytes; chunks come in order."""
        expected = self._rows.get(message.m, 0)
        if self.begun or message.start != expected:
            raise PeerError(
                f"device {message.m} may fill row {expected} next, before the rounds begin, got row {message.start}; "
                "the link is closed."
            )
        self.server.fill(message)
        self._rows[message.m] = expected + len(message.h)
        meter = self.journal.meter
        meter.bytes_up += size
        meter.bytes_initial += size
        meter.payload_bytes += self.codecs[message.m - 1].payload_bytes(message)

    def fill_ends(self, m: int) -> None:
        """Device m says that its first fill is complete."""
        if self.begun or self._rows.pop(m, 0) < self.plan.D:
            raise PeerError(f"device {m} must fill {self.plan.D} rows before the rounds begin; the link is closed.")
        self._filled.add(m)

    def begin(self, message: Embeddings, frame: bytes | memoryview) -> Opened:
        """Begin the next round with a device's batch, which came as `frame`: its release is made, but not durable."""
        pending = self.server.ask(message, self.gate.contributes(self.server.t + 1, message))
        digest = xxh3_128_digest(frame)
        release = self.gate.submit(pending, digest)
        return Opened(message, pending, release, self.codecs[message.m - 1].encode(release), digest, len(frame))

    def commit(self, opened: Opened) -> None:
        """Return when the release, and every one before it, is on the disk; its answer may then be sent."""
        self.ledger.wait(opened.release.t)

    def close(self, opened: Opened) -> None:
        """End a round: the table and w_0 move on, and what happened is written down."""
        release, codec = opened.release, self.codecs[opened.release.m - 1]
        self.server.accept(release, self.gate.head_steps(release.t))
        self.folder.transcript(release.t, release.m, release.Delta, opened.digest)
        payload = codec.payload_bytes(opened.message) + codec.payload_bytes(release)
        self.round_ends(opened.size, len(opened.answer), payload)

    def round_ends(self, up: int, down: int, payload: int) -> None:
        """Count the bytes of the round that the server has just ended, and find out what is due before the next one.

        `up` and `down` are the lengths of its two frames, and `payload` are the bytes of the numbers in both.
        """
        meter, t = self.journal.meter, self.server.t
        meter.bytes_up += up
        meter.bytes_down += down
        meter.payload_bytes += payload
        self.evaluation_due = t % self.config.train.eval_every == 0 or t == self.plan.T
        late = time.monotonic() - self._saved > self.config.runtime.checkpoint_seconds
        stale = self._apart and t - self._saved_t >= STALE * self.plan.T
        self.checkpoint_due = late or stale or self.gate.at_stake >= AT_STAKE

    def has_round(self, m: int) -> bool:
        """Whether device m may still begin a round: each has T // M of them, and the first T % M to ask have one more.

        So no record takes part more often than with devices that take turns, whoever is fast. What counts are the
        rounds in the ledger, so a restart changes nothing.
        """
        (each, more), rounds = divmod(self.plan.T, self.plan.M), self.server.positions
        own = rounds[m - 1]
        return own < each or (own == each and sum(n > each for n in rounds) < more)

    def expect(self, m: int, position: int) -> None:
        """Let the next batch of device m be the one at `position` of its schedule, as if those before it were over."""
        self.server.positions[m - 1] = position

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return self.server.t >= self.plan.T

    def evaluate(self, tests: list[Evaluation], virtual_seconds: float) -> None:
        """Measure the head in the loop on the devices' test embeddings; the first of them are kept for `finish`."""
        rows = self._test_rows(tests)
        if not self.begun:
            self._keep_untrained(rows, {message.m for message in tests})
        self.journal.evaluate(rows, virtual_seconds)
        self.evaluation_due = False

    def save(self, beside: checkpoint.Simulated | None = None) -> None:
        """Make ledger and logs durable, then write the checkpoint, which never knows more than they do."""
        self.ledger.keep()
        journal, server = self.journal, self.server
        progress = checkpoint.Progress(
            t=server.t,
            positions=server.positions,
            times=server.times,
            delays=server.delays,
            zeroed=server.zeroed,
            clipped=server.clipped,
            clock=beside.clock.state() if beside else [],
            meter=journal.meter,
            seconds=journal.seconds,
            targets=journal.targets,
            lengths=self.folder.lengths(),
        )
        checkpoint.save(self.folder.checkpoint, server, progress, beside)
        self.gate.kept()
        self._saved, self._saved_t, self.checkpoint_due = time.monotonic(), server.t, False

    def train_head_alone(self) -> None:
        """Take all head steps of a run without rounds, on the first fill of the table."""
        self.server.train_head(self.gate.head_steps(0))

    def longest_frame(self, m: int, batches: int) -> int:
        """Bytes of the longest frame that device m may send: a chunk of its fill, or the rows of so many batches."""
        codec, width = self.codecs[m - 1], self.server.table.widths[m - 1]
        return codec.longest(max(batches * self.plan.B, CHUNK), width)

    def finish(self, tests: list[Evaluation], virtual_seconds: float) -> dict[str, Any]:
        """Fit the final head on the table, and write weights and summary: the run is finished, and its ledger ended."""
        self.journal.tested = {message.m for message in tests}
        kept, untrained = self.folder.untrained, None
        if kept.exists():
            untrained = checkpoint.load_untrained(kept, self.config.runtime.accelerator)
        summary = self.journal.finish(self._test_rows(tests), virtual_seconds, self._whole_table, untrained)
        self.ledger.end()  # only now: an ended run could not go on after a crash before its summary
        kept.unlink(missing_ok=True)
        return summary

    def _keep_untrained(self, rows: torch.Tensor, tested: set[int]) -> None:
        """Keep the embeddings of untrained devices, if a head that stays here can be fitted to them in the end.

        It is fitted only then: nothing that a device could notice, not even the time of the first round, may depend on
        a fit without noise.
        """
        config, kept = self.config, self.folder.untrained
        if self.plan.T and config.table.start == "fill" and len(tested) == self.plan.M:
            table = self._whole_table() if config.head.final != "private" else None
            if table is not None and not _alike(table):
                checkpoint.save_untrained(kept, Untrained(table, rows))
                return
        kept.unlink(missing_ok=True)

    def _whole_table(self) -> torch.Tensor:
        return whole(self.server.table, self.config.table.path)

    def missed(self, m: int, position: int) -> Iterator[Release]:
        """The releases that device m, whose weights are at `position`, has not applied yet; more may come meanwhile.

        They are read a few at a time, from the first one on: a device that has all of them costs nothing.
        """
        rounds = self._rounds_of(m)
        if not 0 <= position <= len(rounds):
            raise PeerError(
                f"device {m} is at batch {position}, but was sent {len(rounds)} releases in this run; its folder is of "
                "another run, or the server's ledger is an old copy: check both."
            )
        return self._releases(m, position)

    def sent_again(self, release: Release, size: int) -> None:
        """A device that came back was sent a release that it had missed, in a frame of `size` bytes."""
        self.journal.meter.bytes_down += size
        self.journal.meter.payload_bytes += self.codecs[release.m - 1].payload_bytes(release)

    def _releases(self, m: int, position: int) -> Iterator[Release]:
        while position < len(rounds := self._rounds_of(m)):
            for t, to, k, Delta, _ in list(self.ledger.released(rounds[position], AT_ONCE)):
                if to == m:
                    yield Release(t, m, k, Delta)
                    position = k + 1

    def _rounds_of(self, m: int) -> array[int]:
        """The rounds in which device m got its releases, by position."""
        if self._indexed < self.ledger.last_t:
            for t, to in self.ledger.rounds(self._indexed + 1):
                self._rounds[to - 1].append(t)
                self._indexed = t
        return self._rounds[m - 1]

    def _test_rows(self, tests: list[Evaluation]) -> torch.Tensor:
        return self.server.evaluation_rows(tests, self.D_test)

    def _catch_up(self, known: int) -> None:
        """Take over the rounds after round `known` from the ledger."""
        server = self.server
        for t, m, position, Delta, digest in self.ledger.released(known + 1):
            self.folder.transcript(t, m, Delta, digest)
            server.t, server.positions[m - 1], server.times[m - 1] = t, position + 1, t


def _alike(rows: torch.Tensor) -> bool:
    """Whether all rows are the same, as from weights that start at zero: no head could tell such records apart."""
    return all(bool((rows[at : at + CHUNK] == rows[0]).all()) for at in range(0, len(rows), CHUNK))
