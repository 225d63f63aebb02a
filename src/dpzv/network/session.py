"""The run that a host holds once the records are aligned: server, gate, journal and rounds, new or as they were."""

from __future__ import annotations

from contextlib import ExitStack

from dpzv.config import Config, per_device
from dpzv.errors import PeerError
from dpzv.network.alignment_state import AlignmentState, LabelRecords
from dpzv.network.rounds import Rounds
from dpzv.network.transport import Peers
from dpzv.privacy.plan import start_event
from dpzv.protocol.messages import Fill, Release
from dpzv.runtime import checkpoint
from dpzv.runtime.build import plan_of
from dpzv.runtime.gate import Gate
from dpzv.runtime.journal import Journal, Judge
from dpzv.runtime.run import make_noise, open_ledger
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.sides import accelerator_of, codec_of, labels_of, make_server
from dpzv.runtime.simulate import exactly

__all__ = ["Session"]


class Session:
    """A run between its aligned records and its folder; `stack` closes ledger and folder."""

    def __init__(
        self,
        config: Config,
        labels: LabelRecords,
        alignment: AlignmentState,
        folder: RunFolder,
        peers: Peers,
        stack: ExitStack,
    ) -> None:
        self._config, self._folder = config, folder
        y_train, y_test = alignment.labels()
        M, accelerator = len(config.network.devices), accelerator_of(config)
        self.plan, noise = plan_of(config, len(y_train), M), make_noise(config)
        widths = per_device("devices.embedding", config.devices.embedding, M)
        self.codecs = tuple(codec_of(config, m, M) for m in range(1, M + 1))
        train = labels_of(y_train, labels.task, accelerator)
        self.server = make_server(config, labels.task, labels.outputs, train, widths, self.plan, noise)
        described = {"name": labels.name, "records": len(y_train), "fingerprint": alignment.fingerprint}
        test = labels_of(y_test, labels.task, accelerator)
        judge = Judge(labels.task, self.server.method.loss, labels.outputs, test, described)
        self.ledger = stack.enter_context(open_ledger(config, alignment.fingerprint, self.plan, folder))
        stack.enter_context(folder)
        for i, name in enumerate(self.plan.starts):
            if name == "dp-pca":
                self.ledger.write_start(start_event(self.ledger.plan, i))
        gate = Gate(self.ledger, noise)
        self.journal = Journal(config, judge, self.server, gate, folder)
        self.rounds = Rounds(config, self.server, self.codecs, gate, self.journal, folder, peers)
        self.filled: set[int] = set()
        self._rows: dict[int, int] = {}  # rows that each device has filled so far
        self.begun = False
        self._restore()

    @property
    def ready(self) -> bool:
        """Whether every device's rows are in the table, so that rounds may begin."""
        return self.begun or self._config.table.start == "zeros" or len(self.filled) == self.plan.M

    def needs_fill(self, m: int) -> bool:
        """Whether device m must still upload all its train records."""
        return not self.begun and self._config.table.start == "fill" and m not in self.filled

    def filled_to(self, m: int, *, again: bool) -> int:
        """The train record from which device m's fill goes on: behind the last chunk that came, unless it is a new one.

        `again`: it still has the weights of then.
        """
        if not again:
            self._rows.pop(m, None)
        return self._rows.get(m, 0)

    def fill(self, message: Fill, size: int) -> None:
        """A chunk of the first fill, in a frame of `size` bytes; chunks come in order."""
        expected = self._rows.get(message.m, 0)
        if self.begun or message.start != expected:
            raise PeerError(
                f"device {message.m} may fill row {expected} next, before the rounds begin, got row {message.start}; "
                "the peer is closed."
            )
        self.server.fill(message)
        self._rows[message.m] = expected + len(message.h)
        meter = self.journal.meter
        meter.bytes_up += size
        meter.bytes_initial += size
        meter.payload_bytes += self.codecs[message.m - 1].row_bytes(message.h.shape[1]) * len(message.h)

    def fill_ends(self, m: int) -> None:
        """Device m says that its first fill is complete."""
        if self.begun or self._rows.pop(m, 0) < self.plan.D:
            raise PeerError(f"device {m} must fill {self.plan.D} rows before the rounds begin; the peer is closed.")
        self.filled.add(m)

    def missed(self, m: int, position: int) -> list[Release]:
        """The releases that device m, whose weights are at `position`, has not applied yet."""
        found = [Release(t, m, k, Delta) for t, to, k, Delta, _ in self.ledger.released() if to == m]
        if not 0 <= position <= len(found):
            raise PeerError(
                f"device {m} is at batch {position}, but was sent {len(found)} releases in this run; its folder is "
                "that of another run, or the server's ledger is an old copy."
            )
        return found[position:]

    def _restore(self) -> None:
        """Back to the last checkpoint, then forward to what the ledger knows.

        Rounds after the checkpoint are not computed again: their releases stand, their rows in the table stay as old
        as they were, and head steps that were paid for and lost stay paid for.
        """
        if not self._folder.checkpoint.exists():
            self._folder.cut((0, 0))
            return
        progress = checkpoint.load(self._folder.checkpoint, [], self.server, None)
        self.begun = True
        self.journal.meter, self.journal.targets = progress.meter, dict(progress.targets)
        self.journal.seconds_before = progress.seconds
        finished = self._folder.finished  # then its logs are complete
        if not finished:
            self._folder.cut(progress.lengths)
        server = self.server
        for t, m, position, Delta, frame_xxh3 in self.ledger.released():
            if t > progress.t and not finished:
                self._folder.transcript(t, m, exactly(Delta), frame_xxh3.hex())
                server.t, server.positions[m - 1], server.times[m - 1] = t, position + 1, t
