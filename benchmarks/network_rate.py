"""Rounds per second over TLS, compared with a bare gRPC echo of the same bytes, with one device and with seven.

Rounds of one number are told without a bar: 0.3 to 0.55 of the echoes is what a server in Python can do. With 16
directions a message the work is a smaller part of the whole, and seven devices have a bar.

The server is in this process; one device has a process of its own, and seven devices share two. All are on loopback.
The echo has the same processes, the same gRPC settings and frames of the same sizes, and does nothing but read and
write. In the run, outputs and losses of all networks, the server's head among them, are constants. Everything around
them is done: rows and features are gathered, differences clipped and summed, weights moved, frames hashed, releases
admitted and stored.

Slices of run and echo alternate, so that a noisy machine disturbs both alike; the figure is the median of the ratios of
neighbouring slices. A run without work shows the most that could be reached: frames are packed, checked, put in turn
and answered, but nothing is computed.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import torch

from benchmarks.bar import Row
from benchmarks.device_processes import CountingServer, credentials, issue_keys, pace, port_of, spawned
from benchmarks.network_parts import (
    CASES,
    Case,
    ConstantDevice,
    Parts,
    config_of,
    labels_of,
    records,
    without_head,
    without_work,
)
from dpzv import config as configuration
from dpzv.network.arrivals import Arrivals
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.grpc_transport import GrpcConnector, GrpcListener, GrpcStream
from dpzv.network.transport import Stream
from dpzv.network.wire import PART
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.server_run import ServerRun

__all__ = ["rows"]

PROCESSES = {1: 1, 7: 2}
SLICES = 9
NOISE = ("seeded", "exact")
BAR = 1.5  # a run of 16 directions over the echo of the same bytes
FOLDER = "."  # on the disk that is measured, as in ledger_rate


class _ConstantServer(CountingServer):
    without_work = False

    async def _train(self, run: ServerRun, arrivals: Arrivals) -> bool:
        without_head(run.server)
        if self.without_work:
            without_work(run)
        return await super()._train(run, arrivals)


@dataclass(frozen=True, slots=True)
class _Slice:
    """What one process of devices is told: a run, with or without work, or without `noise` the echo of `up` bytes."""

    case: Case
    devices: tuple[int, ...]
    port: int
    folder: Path
    keys: Path
    noise: str
    without_work: bool
    up: int


async def _take_part(asked: _Slice, m: int) -> None:
    """One device, until the server says that it is over."""
    name = f"device-{m}"
    connector = GrpcConnector(f"127.0.0.1:{asked.port}", credentials(asked.keys, name), "server")
    if asked.noise:
        config, features = config_of(asked.case, asked.noise), FeatureRecords(*records(m))
        party = DeviceParty(config, features, asked.folder / name)
        party.conversation = talk = ConstantDevice(config, features, DeviceFolder(asked.folder / name))
        talk.without_work = asked.without_work
        await party.run(connector)
        return
    frame = [secrets.token_bytes(min(PART, asked.up - start)) for start in range(0, asked.up, PART)]
    async with connector.connect() as stream:
        with suppress(grpc.aio.AioRpcError):
            while True:
                for part in frame:
                    await stream.raw.write(part)
                if len(await stream.raw.read()) == 1:
                    break


def _devices(orders: Connection) -> None:
    """Run the devices of one process, slice after slice, until it is told to end."""
    torch.set_num_threads(1)

    async def together(asked: _Slice) -> None:
        await asyncio.gather(*(_take_part(asked, m) for m in asked.devices))

    while (asked := orders.recv()) is not None:
        asyncio.run(together(asked))
        orders.send("done")


class _Echo:
    """The least that any server over this link does: read a frame, send another."""

    def __init__(self, total: int, up: int, down: int) -> None:
        self.rounds, self._total, self._answer = 0, total, secrets.token_bytes(down)
        self._parts = -(-up // PART)  # as the transport cuts long frames

    async def talk(self, served: Stream) -> None:
        """One device; it is told by a frame of one byte that all frames are echoed."""
        assert isinstance(served, GrpcStream)
        stream = served.raw
        while self.rounds < self._total:
            for _ in range(self._parts):
                if await stream.read() is grpc.aio.EOF:
                    return
            self.rounds += 1
            await stream.write(self._answer)
        for _ in range(self._parts):
            await stream.read()
        await stream.write(b".")

    async def run(self, listener: GrpcListener, finished: asyncio.Event) -> None:
        """Serve until `finished`."""
        await listener.start(self.talk)
        await finished.wait()
        await listener.stop(2)


class _Parties:
    """Keys, and the processes that hold the devices."""

    def __init__(self, case: Case, folder: Path, stack: ExitStack) -> None:
        self._case, self._folder = case, folder
        self._M = M = case.M
        issue_keys(folder, [f"device-{m}" for m in range(1, M + 1)])
        self._pipes = spawned(_devices, PROCESSES[M], stack)

    async def rate(self, way: str, up: int, down: int) -> float:
        """Rounds per second of a run with noise of kind `way`, or of the echo, or of a run without work."""
        noise = {"echo": "", "without work": "seeded"}.get(way, way)
        out = self._folder / secrets.token_hex(4)
        finished, listener = asyncio.Event(), GrpcListener("127.0.0.1:0", credentials(self._folder, "server"))
        server: _ConstantServer | _Echo
        if noise:
            config = config_of(self._case, noise)
            server = _ConstantServer(
                config, labels_of(), RunFolder.create(out / "server", configuration.render(config))
            )
            server.without_work = way == "without work"
            serving: asyncio.Task[Any] = asyncio.create_task(server.run(listener))
        else:
            server = _Echo(self._case.rounds, up, down)
            serving = asyncio.create_task(server.run(listener, finished))
        port = await port_of(listener, serving)
        for i, pipe in enumerate(self._pipes):
            devices = tuple(range(1 + i, self._M + 1, len(self._pipes)))
            pipe.send(_Slice(self._case, devices, port, out, self._folder, noise, way == "without work", up))
        rate = await pace(server, serving, self._case.rounds)
        for pipe in self._pipes:
            await asyncio.to_thread(pipe.recv)
        finished.set()
        await serving
        return rate


async def _rates(parties: _Parties, up: int, down: int) -> dict[str, list[float]]:
    """Rates of the echo, of a run without work and of the runs with seeded and exact noise, slice by slice."""
    found: dict[str, list[float]] = {"echo": [], "without work": [], **{noise: [] for noise in NOISE}}
    for _ in range(SLICES):
        for way, rates in found.items():
            rates.append(await parties.rate(way, up, down))
    return found


def _shares(parts: dict[str, float], rate: float, echo: float) -> str:
    """The parts of a round in microseconds and as shares of it; the rest is time to wake up and to wait.

    Devices and disk work at the same time as the server, so with seven devices the shares may add up to over
    100 %.
    """
    told = {"gRPC": 1 / echo, **parts}
    told["rest"] = max(0.0, 1 / rate - sum(told.values()))
    return ", ".join(f"{name} {seconds * 1e6:.0f} us ({seconds * rate:.0%})" for name, seconds in told.items())


def rows() -> list[Row]:
    """One and seven devices, and seven with 16 directions and two sizes of batches, each with both kinds of noise.

    With seeded noise the ledger is in memory, with exact noise on the disk.
    """
    torch.set_num_threads(1)
    found = []
    for case in CASES:
        with tempfile.TemporaryDirectory(dir=FOLDER) as name, ExitStack() as stack:
            parts = {}
            for noise in NOISE:
                with ExitStack() as closing:
                    parts[noise], up, down = Parts(case, noise, Path(name) / noise, closing).measure(300)
            rates = asyncio.run(_rates(_Parties(case, Path(name), stack), up, down))
        echo = statistics.median(rates["echo"])
        print(f"network, {case}: echo {echo:.0f} rounds/s, {up} bytes up, {down} down", file=sys.stderr)
        for way in ("without work", *NOISE):
            rate = statistics.median(rates[way])
            over = sorted(mine / bare for mine, bare in zip(rates[way], rates["echo"], strict=True))
            middle = statistics.median(over)
            shares = f": {_shares(parts[way], rate, echo)}" if way in parts else ""
            told = f"{rate:.0f} rounds/s, {middle:.2f} ({over[0]:.2f} to {over[-1]:.2f}) of the echoes"
            print(f"  {way}: {told}{shares}", file=sys.stderr)
            if way in NOISE and case.K == 1:
                found.append(Row(f"network: rounds over echoes, {case}, {way}", middle, 0.0, most=False))
            elif way in NOISE:
                found.append(Row(f"network: time of a run over its echoes, {case}, {way}", 1 / middle, BAR))
    return found
