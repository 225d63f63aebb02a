"""Rounds per second over TLS against a bare gRPC echo of the same bytes, with one device and with seven.

The server is here, the devices are in processes of their own, all on loopback. Networks' outputs are constants on both
sides, so what is left is the round itself. Slices of the run and of the echo alternate, so that a noisy machine
disturbs both alike; the figure is the ratio of the median rates.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.bar import Row
from dpzv import config as configuration
from dpzv.config import Config
from dpzv.methods import dpzv, rules
from dpzv.methods.heads import Frozen
from dpzv.network.credentials import Credentials, channel_credentials, server_credentials
from dpzv.network.guest import Features, Guest
from dpzv.network.host import Host
from dpzv.network.keyfiles import create_authority, issue_party
from dpzv.network.link import LOST, Stream, listen, open_stream
from dpzv.network.meeting import Labels, Meeting
from dpzv.network.peers import Peers
from dpzv.network.session import Session
from dpzv.network.wire import Rows, pack_message, unpack
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Embeddings, Release
from dpzv.protocol.server import Server
from dpzv.runtime.record import RunFolder
from dpzv.runtime.run import make_noise
from dpzv.runtime.simulate import exactly

__all__ = ["rows"]

B, K, D, WIDTH, OUTPUTS = 512, 16, 20_000, 16, 10
ROUNDS = {1: 2000, 7: 4000}
PROCESSES = {1: 1, 7: 2}
SLICES = 3
BARS = {"seeded": 0.7, "exact": 0.4}
LAM = 1e-3
FOLDER = "."  # the disk under test, as in ledger_rate


def _config(M: int, noise: str) -> Config:
    names = [f"device-{m}" for m in range(1, M + 1)]
    return configuration.parse(
        {
            "data": {"name": "digits", "holdout": 0.01},
            "devices": {"embedding": K},
            "train": {"rounds": ROUNDS[M], "B": B, "lam": LAM, "eval_every": 10**9},
            "head": {"rule": "frozen", "final": "private"},
            "noise": {"source": noise},
            "network": {"devices": names},
            "runtime": {"kind": "network", "threads": 1},
        }
    )


def _records(m: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Ids that all parties share, and random features of party `m`."""
    hashes = np.random.default_rng(0).integers(0, 256, (D, 16), dtype=np.uint8)
    return hashes, np.random.default_rng(m).standard_normal((D, WIDTH), dtype=np.float32)


def _labels() -> Labels:
    return Labels(_records(0)[0], np.random.default_rng(0).integers(0, OUTPUTS, D), "classes", OUTPUTS, "random")


class _ConstantRule(rules.DeviceRule):
    """Sends the same embeddings whatever the batch; moves as the rule it stands for."""

    def __init__(self, rule: rules.DeviceRule) -> None:
        self._rule, self.network, self.velocity = rule, rule.network, rule.velocity
        self._h = torch.zeros(B, K), torch.ones(B, K)

    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        return self._h

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        self._rule.update(Delta, position=position, t=t)


class _ConstantHead(Frozen):
    """A head whose outputs are known beforehand."""

    def output(self, t: int, rows: torch.Tensor, offset: float) -> torch.Tensor:
        return _OUTPUT


_OUTPUT, _LOSSES = torch.zeros(B, OUTPUTS), torch.zeros(B)


def _without_head(server: Server) -> None:
    """Take head and loss out of the rounds; all that is around them stays."""
    head, C = server.rule.head, server.rule.C
    server.rule = dpzv.ServerRule(head, _ConstantHead(head), lambda output, y: _LOSSES, C)


class _ConstantGuest(Guest):
    def _build(self, rows: Rows) -> None:
        super()._build(rows)
        assert self._device is not None
        self._device.rule = _ConstantRule(self._device.rule)


class _ConstantHost(Host):
    @property
    def rounds(self) -> int:
        return self._session.server.t if self._session is not None else 0

    async def _train(self, session: Session) -> dict[str, Any] | None:
        _without_head(session.server)
        return await super()._train(session)


@dataclass(frozen=True, slots=True)
class _Slice:
    """What the devices of one process are told: a run, or without `noise` the echo of `up` bytes."""

    M: int
    devices: tuple[int, ...]
    port: int
    folder: Path
    keys: Path
    noise: str
    up: int


def _credentials(keys: Path, name: str) -> Credentials:
    return Credentials(keys / name / f"{name}.crt", keys / name / f"{name}.key", keys / name / "ca.crt")


async def _take_part(asked: _Slice, m: int) -> None:
    """One device, until the server says that it is over."""
    address, name = f"127.0.0.1:{asked.port}", f"device-{m}"
    credentials = partial(channel_credentials, _credentials(asked.keys, name))
    if asked.noise:
        guest = _ConstantGuest(_config(asked.M, asked.noise), Features(*_records(m)), asked.folder / name)
        await guest.run(address, credentials, server="server")
        return
    channel, stream = open_stream(address, credentials(), "server")
    frame = secrets.token_bytes(asked.up)
    with suppress(*LOST):
        while True:
            await stream.write(frame)
            if len(await stream.read()) == 1:
                break
    await channel.close()


def _devices(orders: Connection) -> None:
    """A process that holds devices, slice after slice."""
    torch.set_num_threads(1)

    async def together(asked: _Slice) -> None:
        await asyncio.gather(*(_take_part(asked, m) for m in asked.devices))

    while (asked := orders.recv()) is not None:
        asyncio.run(together(asked))
        orders.send("done")


class _Echo:
    """What any server over this link does at least: read a frame, send another."""

    def __init__(self, total: int, down: int) -> None:
        self.rounds, self._total, self._answer = 0, total, secrets.token_bytes(down)

    async def talk(self, stream: Stream) -> None:
        """One device; it is told by a frame of one byte that all frames are echoed."""
        while self.rounds < self._total:
            if await stream.read() is grpc.aio.EOF:
                return
            self.rounds += 1
            await stream.write(self._answer)
        await stream.read()
        await stream.write(b".")

    async def run(self, credentials: grpc.ServerCredentials, finished: asyncio.Event) -> None:
        """Serve until `finished`."""
        listener, self.port = await listen("127.0.0.1:0", credentials, self.talk)
        await finished.wait()
        await listener.stop(grace=2)

    port = 0


class _Town:
    """Keys, and the processes that hold the devices."""

    def __init__(self, M: int, folder: Path, stack: ExitStack) -> None:
        self._M, self._folder = M, folder
        create_authority(folder / "ca", 20)
        for name in ("server", *(f"device-{m}" for m in range(1, M + 1))):
            issue_party(folder / "ca", name, folder / name, None, 10)
        context, self._pipes = multiprocessing.get_context("spawn"), []
        for _ in range(PROCESSES[M]):
            here, there = context.Pipe()
            process = context.Process(target=_devices, args=(there,), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(here.send, None)
            self._pipes.append(here)

    async def rate(self, noise: str, up: int, down: int) -> float:
        """Rounds per second of a run, or without `noise` of the echo."""
        out = self._folder / secrets.token_hex(4)
        finished, credentials = asyncio.Event(), server_credentials(_credentials(self._folder, "server"))
        server: _ConstantHost | _Echo
        if noise:
            config = _config(self._M, noise)
            server = _ConstantHost(config, _labels(), RunFolder.create(out / "server", configuration.render(config)))
            serving: asyncio.Task[Any] = asyncio.create_task(server.run("127.0.0.1:0", credentials))
        else:
            server = _Echo(ROUNDS[self._M], down)
            serving = asyncio.create_task(server.run(credentials, finished))
        while not server.port:
            if serving.done():
                serving.result()
            await asyncio.sleep(0.01)
        for i, pipe in enumerate(self._pipes):
            devices = tuple(range(1 + i, self._M + 1, len(self._pipes)))
            pipe.send(_Slice(self._M, devices, server.port, out, self._folder, noise, up))
        rate = await self._watched(server, serving)
        for pipe in self._pipes:
            await asyncio.to_thread(pipe.recv)
        finished.set()
        await serving
        return rate

    async def _watched(self, server: _ConstantHost | _Echo, serving: asyncio.Task[Any]) -> float:
        """The pace between a tenth and nine tenths of all rounds."""
        seen = []
        for share in (0.1, 0.9):
            while server.rounds < share * ROUNDS[self._M]:
                if serving.done():
                    serving.result()
                await asyncio.sleep(0.002)
            seen.append((time.perf_counter(), server.rounds))
        (start, first), (end, last) = seen
        return (last - first) / (end - start)


class _Parts:
    """The parts of a round, one after the other in this process, without a network: median seconds each."""

    def __init__(self, M: int, noise: str, folder: Path, stack: ExitStack) -> None:
        config, labels = _config(M, noise), _labels()
        run = RunFolder.create(folder, configuration.render(config))
        meeting = Meeting(folder, labels, M, config.data.holdout, B)
        for m in range(1, M + 1):
            meeting.take(m, labels.hashes.tobytes())
        self._folder = run
        self.session = Session(config, labels, meeting, run, Peers(), stack)
        _without_head(self.session.server)
        self._noise, self._M = make_noise(config), M
        self._guests = [_ConstantGuest(config, Features(*_records(m)), folder / f"{m}") for m in range(1, M + 1)]
        self._devices: list[Device] = []
        for m, guest in enumerate(self._guests, 1):
            guest._m = m
            guest._build(meeting.rows(m))
            assert guest._device is not None
            self._devices.append(guest._device)
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
        device, session, codec = self._devices[m - 1], self.session, self.session.codecs[m - 1]
        server, gate, ledger = session.server, session.rounds._gate, session.ledger
        time_of = self._time
        message = time_of("device: batch", device.upload)
        frame = time_of("codec", lambda: pack_message(codec, message))
        got = time_of("codec", lambda: unpack(codec, frame))
        assert isinstance(got, Embeddings)
        contributes = time_of("gate", lambda: gate.contributes(server.t + 1, got))
        pending = time_of("server.ask", lambda: server.ask(got, contributes))
        sha256 = time_of("sha256", lambda: hashlib.sha256(frame[1:]))
        event = gate._event(pending.t, pending.m, pending.position, pending.B)
        common = {"grid": pending.grid, "divisor": pending.divisor, "sigma_dp": gate.plan.sigma_dp}
        Delta = time_of("noise", lambda: self._noise.release(pending.totals, **common, t=pending.t, m=m))
        time_of("gate", lambda: ledger.admit(event))
        time_of("gate", lambda: ledger.submit(event, Delta, sha256.digest()))
        time_of("ledger to disk", lambda: ledger.wait(event.t))
        release = Release(pending.t, m, pending.position, Delta)
        time_of("transcript", lambda: self._folder.transcript(release.t, m, exactly(Delta), sha256.hexdigest()))
        time_of("server.ask", lambda: server.accept(release, gate.head_steps(release.t)))
        answer = time_of("codec", lambda: pack_message(codec, release))
        time_of("codec", lambda: unpack(codec, answer))
        time_of("device: step", lambda: device.receive(release))
        return len(frame), len(answer)

    def _time(self, name: str, act: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = act()
        self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start
        return result


async def _rates(town: _Town, up: int, down: int) -> dict[str, float]:
    """Median rates of the echo ("") and of the runs with seeded and exact noise."""
    found: dict[str, list[float]] = {"": [], **{noise: [] for noise in BARS}}
    for _ in range(SLICES):
        for noise, rates in found.items():
            rates.append(await town.rate(noise, up, down))
    return {noise: statistics.median(rates) for noise, rates in found.items()}


def _shares(parts: dict[str, float], rate: float, echo: float) -> str:
    """The parts of a round in microseconds and as shares of it; the rest is waking up and waiting.

    Devices and disk work beside the server, so that with seven devices the shares may pass 100 %.
    """
    told = {"gRPC": 1 / echo, **parts}
    told["rest"] = max(0.0, 1 / rate - sum(told.values()))
    return ", ".join(f"{name} {seconds * 1e6:.0f} us ({seconds * rate:.0%})" for name, seconds in told.items())


def rows() -> list[Row]:
    """Four rows: one and seven devices, seeded noise with the ledger in memory and exact noise with it on the disk."""
    torch.set_num_threads(1)
    found = []
    for M in ROUNDS:
        with tempfile.TemporaryDirectory(dir=FOLDER) as name, ExitStack() as stack:
            parts = {}
            for noise in BARS:
                with ExitStack() as closing:
                    parts[noise], up, down = _Parts(M, noise, Path(name) / noise, closing).measure(300)
            rates = asyncio.run(_rates(_Town(M, Path(name), stack), up, down))
        print(f"network, {M} devices: echo {rates['']:.0f} rounds/s, {up} bytes up, {down} down", file=sys.stderr)
        for noise, bar in BARS.items():
            shares = _shares(parts[noise], rates[noise], rates[""])
            print(f"  {noise}: {rates[noise]:.0f} rounds/s: {shares}", file=sys.stderr)
            found.append(Row(f"network: rounds over echoes, M={M}, {noise}", rates[noise] / rates[""], bar, most=False))
    return found
