"""What is attacked: the server and the gate of a configuration, as `dpzv train` builds them, over made-up records.

The universe is small, and so are batch and number of rounds. Clip, budget, neighbours, what is protected, head rule,
starts, codec and seed are the configuration's, and the plan is made by the same function, so the claim is the same and
the noise on a *sum* is that of a run in which a record takes part once per device. Devices do not take part: the
attack speaks for all of them.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from dpzv.config import Config, per_device
from dpzv.data.catalogue import card_of
from dpzv.data.dataset import ServerRecords, outputs_of
from dpzv.errors import ConfigError
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan
from dpzv.protocol.messages import Embeddings, Fill, Pending, Release
from dpzv.runtime.run import load_data
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import ServerParts, plan_of, sizes_of
from dpzv.runtime.server_run import ServerRun
from dpzv.terms import Task

__all__ = ["Machine", "Target", "Transcript", "short", "target_of"]

HEAD_STEPS = 4
"""Steps of a dp-sgd head in one short run."""


@dataclass(frozen=True, slots=True, eq=False)
class Transcript:
    """What the devices saw in `n` repetitions of R rounds: `Delta` is [n, R, K], `t`, `position` [n, R], `m` [R]."""

    Delta: NDArray[np.float64]
    t: NDArray[np.int64]
    position: NDArray[np.int64]
    m: NDArray[np.int64]

    @property
    def common(self) -> NDArray[np.float64]:
        """The releases [n, R] along the direction in which all K numbers are equal, with the noise of one number."""
        found: NDArray[np.float64] = self.Delta.sum(axis=2) / math.sqrt(self.Delta.shape[2])
        return found


@dataclass(slots=True, eq=False)
class Machine:
    """One world: the server's run with its labels, its gate and the public batches. The attack drives it."""

    run: ServerRun

    @property
    def plan(self) -> PrivacyPlan:
        """The plan that the gate keeps."""
        return self.run.plan

    def ids(self, m: int, position: int) -> NDArray[np.int64]:
        """The public batch of device m at `position`."""
        return self.run.schedules[m - 1].ids(position)

    def turn(self, m: int, record: int) -> int:
        """The first position of device m whose batch holds `record`; the server is told to expect it next.

        The batches before it do not hold the record: leaving them out changes nothing that `record` pays for.
        """
        schedule = self.run.schedules[m - 1]
        position = next(k for k in range(-(-schedule.D // schedule.B)) if record in schedule.ids(k))
        self.run.expect(m, position)
        return position

    def fill(self, m: int, record: int, h: torch.Tensor) -> None:
        """Device m uploads the row of one record before the first round, after zeros for the records before it."""
        codec = self.run.codecs[m - 1]
        rows = np.zeros((record + 1, len(h)), np.float32)
        rows[record] = h.numpy()
        frame = codec.encode(Fill(m, 0, rows))
        message = codec.decode(frame)
        assert isinstance(message, Fill)
        self.run.fill(message, len(frame))

    def play(
        self, m: int, position: int, h_plus: torch.Tensor, h_minus: torch.Tensor, *, last: bool = False
    ) -> tuple[Pending, Release]:
        """One round up to its release, through codec, server and gate; `server.accept` closes it.

        With K > 1 directions the embedding is `h_minus`, and `h_plus` along all of them, or along the `last` only.
        Raises PeerError when the server refuses the message.
        """
        codec, K = self.run.codecs[m - 1], self.plan.directions
        moved = 1 if last else K
        sent = (h_plus, h_minus) if K == 1 else (*[h_minus] * (K + 1 - moved), *[h_plus] * moved)
        frame = codec.encode(Embeddings(m, position, tuple(h.numpy() for h in sent)))
        message = codec.decode(frame)
        assert isinstance(message, Embeddings)
        opened = self.run.begin(message, frame)
        return opened.pending, opened.release

    def repeat(self, rounds: list[Pending], n: int) -> Transcript:
        """The releases of `rounds` in `n` further runs over the same records, through the gate.

        What the server sums is a function of the records and of the history; only the noise differs between runs. So
        the sums are taken from the rounds already played, and each run's releases are drawn for batches of their own,
        as further rounds of one ledger. Its plan still allows a record one batch per device.
        """
        played = {(pending.m, pending.position) for pending in rounds}
        free = [[k for k in range(n + len(played)) if (pending.m, k) not in played] for pending in rounds]
        shape = (n, len(rounds))
        Delta = np.empty((*shape, self.plan.directions))
        t, position = np.empty(shape, np.int64), np.empty(shape, np.int64)
        last = self.run.gate.ledger.last_t
        for j in range(n):
            for r, pending in enumerate(rounds):
                last += 1
                drawn = replace(pending, t=last, position=free[r][j])
                Delta[j, r] = self.run.gate.release(drawn, b"").Delta
                t[j, r], position[j, r] = drawn.t, drawn.position
        return Transcript(Delta, t, position, np.array([pending.m for pending in rounds]))


@dataclass(frozen=True)
class Target:
    """A configuration under attack: the task and the number of devices of its data, and the noise it uses.

    `q` is the probability that a record is in the batch of a head step.
    """

    config: Config
    noise: NoiseSource
    task: Task
    n_classes: int
    M: int
    q: float

    @contextmanager
    def machine(self, *, B: int, batches: int, rounds: int) -> Iterator[Machine]:
        """A world of B * `batches` records, all with the first label, and a plan of `rounds` rounds in all.

        With a dp-sgd head the plan has `HEAD_STEPS` head steps. Without rounds these steps have the whole budget and
        draw with probability `q`; with rounds only their share of the budget matters, and they draw all records.
        """
        D = B * batches
        head_batch = D if rounds else max(1, round(self.q * D))
        config = short(self.config, B=B, rounds=rounds, head_batch=head_batch)
        plan = _plan(config, D, self.M)
        y = np.zeros(D, np.float32 if self.task == "regression" else np.int64)
        records = ServerRecords("audit", self.task, outputs_of(self.task, self.n_classes), y, y[:1], "audit")
        widths = per_device("devices.embedding", config.devices.embedding, self.M)
        given = ServerParts(config, records, widths, plan, self.noise)
        with tempfile.TemporaryDirectory() as folder, ServerRun(given, RunFolder(Path(folder))) as run:
            yield Machine(run)


def target_of(config: Config, noise: NoiseSource) -> Target:
    """The configuration as a target, over made-up records like those of its data set.

    Of parties' own files it is counted how many records they share; of a data set nothing is read.
    """
    if config.data.parties:
        data = load_data(config)
        task, n_classes, M, D = data.task, data.n_classes, len(data.x_train), len(data.y_train)
    else:
        card = card_of(config.data.name)
        task, n_classes, M, D = card.task, card.n_classes, len(card.devices), round(_TRAINED * card.records)
    if math.isinf(config.privacy.epsilon) or config.privacy.accounting != "exact":
        raise ConfigError(
            "an audit needs a claim against curious devices: a finite privacy.epsilon with privacy.accounting = "
            f"'exact', got epsilon={config.privacy.epsilon:g} and '{config.privacy.accounting}'; change them."
        )
    if sizes_of(config, D, M).T == 0:
        raise ConfigError("an audit needs releases, got a configuration without rounds; set train.rounds.")
    return Target(config, noise, task, n_classes, M, min(1.0, config.head.batch / D))


# about this share of a data set's records is trained on; it matters for the head's sampling only
_TRAINED = 0.8


def short(config: Config, *, B: int, rounds: int, head_batch: int) -> Config:
    """`config` cut down to a few small rounds of devices that take turns."""
    change = msgspec.structs.replace
    return change(
        config,
        devices=change(config.devices, compute=1.0, bandwidth=1.0, latency=0.0),
        train=change(config.train, rounds=rounds, passes=None, B=B),
        head=change(config.head, batch=head_batch, steps=HEAD_STEPS, final="best" if rounds else "private"),
        privacy=change(config.privacy, min_batch=B),
        table=change(config.table, path=""),
        runtime=change(config.runtime, accelerator="cpu"),
        # no person is behind these records, so their ledger need not be durable, whatever noise is attacked
        noise=change(config.noise, source="seeded"),
    )


# plans are kept, because the two worlds of a strategy share theirs, and that of a sampled head takes a second
_plan = lru_cache(maxsize=16)(plan_of)
