"""The parts of one round, each timed by itself, with the networks' outputs replaced by constants."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.alignment import Fewest
from dpzv.methods import dpzv, rules
from dpzv.methods.heads import Frozen
from dpzv.network.alignment_state import AlignmentState, LabelRecords
from dpzv.network.beginning import open_run
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.wire import MESSAGE, pack_release, unpack
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Embeddings, Pending, Release
from dpzv.protocol.server import Server
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import noise_of
from dpzv.runtime.server_run import ServerRun

__all__ = [
    "CASES",
    "Case",
    "ConstantDevice",
    "Parts",
    "config_of",
    "labels_of",
    "records",
    "without_head",
    "without_work",
]

WIDTH, D, COLUMNS, OUTPUTS = 16, 20_000, 16, 10
LAM = 1e-3


class Case(NamedTuple):
    """A run of M devices with K directions a message, for so many rounds of B records."""

    M: int
    K: int
    rounds: int
    B: int = 512

    def __str__(self) -> str:
        return f"M={self.M}" + (f", K={self.K}, B={self.B}" if self.K > 1 else "")


CASES = (Case(1, 1, 2000), Case(7, 1, 4000), Case(7, 16, 1000), Case(7, 16, 400, B=4096))


def config_of(case: Case, noise: str) -> Config:
    """The run of a case, whose embeddings have 16 numbers for each record."""
    M, K, rounds, B = case
    names = [f"device-{m}" for m in range(1, M + 1)]
    return configuration.parse(
        {
            "data": {"name": "digits", "holdout": 0.01},
            "devices": {"embedding": WIDTH},
            "train": {"rounds": rounds, "directions": K, "B": B, "lam": LAM, "eval_every": 10**9},
            "head": {"rule": "frozen", "final": "private"},
            "noise": {"source": noise},
            "network": {"devices": names},
            "runtime": {"kind": "network", "threads": 1},
        }
    )


def records(m: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Ids that all parties share, and random features of party `m`."""
    hashes = np.random.default_rng(0).integers(0, 256, (D, 16), dtype=np.uint8)
    return hashes, np.random.default_rng(m).standard_normal((D, COLUMNS), dtype=np.float32)


def labels_of() -> LabelRecords:
    """Random labels of the records that all parties share."""
    return LabelRecords(records(0)[0], np.random.default_rng(0).integers(0, OUTPUTS, D), "classes", OUTPUTS, "random")


class _ConstantRule(rules.DeviceRule):
    """Sends the same embeddings whatever the batch is, and moves the weights like the rule that it replaces.

    It always moves along the first directions: the length of a new direction is found when the network is evaluated,
    which is not done here.
    """

    def __init__(self, rule: rules.DeviceRule, B: int) -> None:
        vars(self).update(vars(rule))  # the first fill and evaluations are the rule's own
        self._rule = rule
        self._h = tuple(torch.full((B, WIDTH), float(j)) for j in range(max(2, self._K + 1)))

    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        return self._h

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        self._rule.update(Delta, position=0, t=t)


class _ConstantHead(Frozen):
    """A head whose outputs are known beforehand."""

    def output(self, number: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        return _zeros(len(rows), OUTPUTS)

    def outputs(
        self, first: int, rows: torch.Tensor, columns: slice, h: Sequence[NDArray[np.float32]], lam: float
    ) -> Iterator[torch.Tensor]:
        return iter([_zeros(len(rows), OUTPUTS)] * len(h))


@cache
def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def without_head(server: Server) -> None:
    """Take head and loss out of the rounds and keep everything around them."""
    method = server.method
    method.head_rule.__class__ = _ConstantHead
    server.method = dpzv.DpzvServer(
        method.facts, method.head_rule, lambda output, y: _zeros(len(y)), method.C, method.q, method.seed, method.K
    )


def without_work(run: ServerRun) -> None:
    """Take everything out of the rounds but frames, turns and sending: no sum, no table, no noise, no ledger."""
    server, nothing, B = run.server, np.zeros(run.plan.directions), run.plan.B

    def ask(message: Embeddings, contributes: None) -> Pending:
        return Pending(server.t + 1, message.m, message.position, B, nothing, 1.0, B)

    def accept(release: Release, head_steps: int) -> None:
        server.t = release.t
        server.positions[release.m - 1] += 1

    def submit(pending: Pending, frame_xxh3: bytes) -> Release:
        return Release(pending.t, pending.m, pending.position, nothing)

    vars(server).update(ask=ask, accept=accept)
    vars(run.gate).update(submit=submit, contributes=lambda t, message: None, head_steps=lambda t: 0)
    vars(run.folder).update(transcript=lambda *line: None)


class ConstantDevice(Conversation):
    """A device whose network is not evaluated; with `without_work` it reads no features and takes no steps either."""

    without_work = False

    def build(self, train: NDArray[np.int64], test: NDArray[np.int64], mu_start: float) -> None:
        """The device of these rows."""
        super().build(train, test, mu_start)
        device = self.device
        assert device is not None
        device.method = rule = _ConstantRule(device.method, device.schedule.B)
        if self.without_work:
            vars(rule).update(update=lambda Delta, position, t: None)
            vars(device).update(_batch=lambda position: None)


class Parts:
    """The parts of a round, one after the other in this process, without a network: median seconds each."""

    def __init__(self, case: Case, noise: str, folder: Path, stack: ExitStack) -> None:
        config, labels, M = config_of(case, noise), labels_of(), case.M
        alignment = AlignmentState(folder, labels, M, config.data.holdout, Fewest(case.B))
        for m in range(1, M + 1):
            alignment.take(m, labels.hashes, "")
        alignment.settle()
        run_folder = RunFolder.create(folder, configuration.render(config))
        self._run = stack.enter_context(open_run(config, alignment, run_folder))
        without_head(self._run.server)
        self._noise, self._M = noise_of(config), M
        self._devices: list[Device] = []
        for m in range(1, M + 1):
            talk = ConstantDevice(config, FeatureRecords(*records(m)), DeviceFolder(folder / f"{m}"))
            talk.m = m
            rows, numbers = alignment.rows(m)
            talk.build(numbers[: rows.train], numbers[rows.train :], rows.mu_start)
            assert talk.device is not None
            self._devices.append(talk.device)
        self._spent: dict[str, float] = {}

    def measure(self, rounds: int) -> tuple[dict[str, float], int, int]:
        """Median seconds of every part, and the bytes of a frame up and down."""
        spent, up, down = [], 0, 0
        for i in range(rounds):
            self._spent = {}
            up, down = self._round(1 + i % self._M)
            spent.append(self._spent)
        return {name: statistics.median(part[name] for part in spent) for name in spent[0]}, up, down

    def _round(self, m: int) -> tuple[int, int]:
        device, run, codec = self._devices[m - 1], self._run, self._run.codecs[m - 1]
        server, gate, ledger = run.server, run.gate, run.ledger
        time_of = self._time
        message = time_of("device: batch", device.upload)
        frame = time_of("codec", lambda: codec.encode(message, MESSAGE))
        got = time_of("codec", lambda: unpack(codec, frame))
        assert isinstance(got, Embeddings)
        contributes = time_of("gate", lambda: gate.contributes(server.t + 1, got))
        pending = time_of("server.ask", lambda: server.ask(got, contributes))
        digest = time_of("hash", lambda: xxh3_128_digest(memoryview(frame)[1:]))
        event = gate.plan.release(t=pending.t, m=pending.m, position=pending.position, B=pending.B)
        common = {"grid": pending.grid, "divisor": pending.divisor, "sigma_dp": gate.plan.sigma_dp}
        Delta = time_of("noise", lambda: self._noise.release(pending.totals, **common, t=pending.t, m=m))
        time_of("gate", lambda: ledger.admit(event))
        time_of("gate", lambda: ledger.submit(event, Delta, digest))
        time_of("ledger to disk", lambda: ledger.wait(event.t))
        release = Release(pending.t, m, pending.position, Delta)
        time_of("transcript", lambda: run.folder.transcript(release.t, m, Delta, digest))
        time_of("server.ask", lambda: server.accept(release, gate.head_steps(release.t)))
        receipt = time_of("receipt", lambda: ledger.receipts.make(m, release.position, release.t))
        answer = time_of("codec", lambda: pack_release(codec, release, receipt))
        time_of("codec", lambda: unpack(codec, answer))
        time_of("device: step", lambda: device.receive(release))
        return len(frame), len(answer)

    def _time(self, name: str, act: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = act()
        self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start
        return result
