"""Scale with a real server and real devices over TLS on loopback: ten million records, and fifty devices.

The server has a process for each run, four devices have a process each, fifty share two. For records, a run over 60,000
of them comes before and after the one over ten million, and all records are predicted in the end. Memory is what a
process holds for itself (`RssAnon`), at its peak from the start to the end of training or prediction.

    python -m benchmarks.scale_network            all rows, with 10 million records
    python -m benchmarks.scale_network 1000000    fewer records, to try it
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.bar import Row, table
from benchmarks.device_processes import CountingServer, credentials, issue_keys, pace, port_of, spawned
from benchmarks.scale_records import sampled
from dpzv import config as configuration
from dpzv.config import Config
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.grpc_transport import GrpcConnector, GrpcListener
from dpzv.network.predict import Predictor
from dpzv.runtime.run_folder import RunFolder

__all__ = ["rows"]

SMALL, LARGE = 60_000, 10_000_000
COLUMNS, TESTS = 4, 1000
FOLDER = "."  # on a disk: a folder in memory would hold the mapped table there


@dataclass(frozen=True, slots=True)
class _Case:
    """A federation: `D` records, `M` devices in `processes`, embeddings of `E` numbers; with `E` = 1 the head adds."""

    D: int
    M: int
    E: int
    processes: int
    rounds: int

    @property
    def names(self) -> list[str]:
        return [f"device-{m}" for m in range(1, self.M + 1)]

    def config(self, folder: Path) -> Config:
        """The run's configuration; the table is mapped from a file."""
        head = {"model": "sum"} if self.E == 1 else {"hidden": 128}
        return configuration.parse(
            {
                "data": {"name": "made up", "holdout": TESTS / self.D},
                "devices": {"model": "linear", "embedding": self.E},
                "train": {"rounds": self.rounds, "B": 512, "eval_every": 10**9},
                "head": {"rule": "frozen", "final": "private", **head},
                "noise": {"source": "seeded"},
                "privacy": {"delta_dp": 1e-8},
                "table": {"path": str(folder / "table")},
                "network": {"devices": self.names, "order": "turns"},
                "runtime": {"kind": "network", "threads": 1, "checkpoint_seconds": 1e9},
            }
        )

    def hashes(self) -> NDArray[np.uint8]:
        """The hashed ids of all parties, in one order; alignment sorts them all the same."""
        return np.random.default_rng(0).integers(0, 256, (self.D, 16), np.uint8)


@dataclass(frozen=True, slots=True)
class _Order:
    """What a process of devices is told to do."""

    case: _Case
    devices: tuple[int, ...]
    port: int
    folder: Path


@dataclass(frozen=True, slots=True)
class _Service:
    """What a process of the server is told to do: train, or predict all records."""

    case: _Case
    folder: Path
    predict: bool


async def _take_part(asked: _Order, parties: dict[int, DeviceParty]) -> None:
    """Let devices take part until the server says that it is over."""
    at = f"127.0.0.1:{asked.port}"
    names = {m: credentials(asked.folder, f"device-{m}") for m in parties}
    await asyncio.gather(*(party.run(GrpcConnector(at, names[m], "server")) for m, party in parties.items()))


def _devices(orders: Connection) -> None:
    """Run the devices of one process, order after order, and answer each with the peak of the process's memory."""
    torch.set_num_threads(1)
    parties: dict[int, DeviceParty] = {}
    while (asked := orders.recv()) is not None:
        case, folder = asked.case, asked.folder
        with sampled() as peak:
            if not parties:  # the same devices take part in training and in prediction
                config = case.config(folder)
                for m in asked.devices:
                    x = np.random.default_rng(m).standard_normal((case.D, COLUMNS), np.float32)
                    parties[m] = DeviceParty(config, FeatureRecords(case.hashes(), x), folder / f"run-{m}")
            asyncio.run(_take_part(asked, parties))
        orders.send(max(peak))


def _server(pipe: Connection) -> None:
    """Serve what is asked, and answer with the port, and then with the seconds of a round and the peak of memory."""
    torch.set_num_threads(1)
    while (asked := pipe.recv()) is not None:
        with sampled() as peak:
            seconds = asyncio.run(_serve(asked, pipe))
        pipe.send((seconds, max(peak)))


async def _serve(asked: _Service, pipe: Connection) -> float:
    """Train or predict, and return the seconds of a round."""
    case, config = asked.case, asked.case.config(asked.folder)
    y = np.random.default_rng(9).integers(0, 2, case.D)
    labels = LabelRecords(case.hashes(), y, "binary", 2, "made up", "a key")
    listener = GrpcListener("127.0.0.1:0", credentials(asked.folder, "server"))
    if asked.predict:
        predictor = Predictor(config, labels, RunFolder.existing(asked.folder / "run"), case.hashes)
        predicting = asyncio.create_task(predictor.run(listener, 600))
        pipe.send(await port_of(listener, predicting))
        assert len(await predicting) == case.D
        return 0.0
    server = CountingServer(config, labels, RunFolder.create(asked.folder / "run", configuration.render(config)))
    del y, labels  # the server holds them
    serving = asyncio.create_task(server.run(listener))
    pipe.send(await port_of(listener, serving))
    rate = await pace(server, serving, case.rounds)
    await serving
    return 1 / rate


class _Federation:
    """The parties of a case: their keys, and the processes of the devices; every service has a new server process."""

    def __init__(self, case: _Case, above: Path, stack: ExitStack) -> None:
        self.case = case
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=above)))
        issue_keys(self.folder, case.names)
        self._pipes = spawned(_devices, case.processes, stack)

    def serve(self, *, predict: bool = False) -> tuple[float, int, int]:
        """Train or predict; returns the seconds of a round and the peaks of the server's and of a device's memory."""
        began, M, n = time.perf_counter(), self.case.M, len(self._pipes)
        with ExitStack() as stack:
            [server] = spawned(_server, 1, stack)
            server.send(_Service(self.case, self.folder, predict))
            port = server.recv()
            for i, pipe in enumerate(self._pipes):
                pipe.send(_Order(self.case, tuple(range(1 + i, M + 1, n)), port, self.folder))
            device = max(pipe.recv() for pipe in self._pipes)
            seconds, own = server.recv()
        took = time.perf_counter() - began
        what = "prediction of all records" if predict else f"{1e3 * seconds:.2f} ms a round"
        print(
            f"network: D={self.case.D:,}, M={M}: {what}, {took:.0f} s in all, "
            f"server {own / 2**30:.2f} GiB, largest process of devices {device / 2**30:.2f} GiB",
            file=sys.stderr,
        )
        return seconds, own, device


def _trained(case: _Case, above: Path) -> float:
    with ExitStack() as stack:
        return _Federation(case, above, stack).serve()[0]


def _records(D: int, above: Path) -> list[Row]:
    few = _Case(SMALL, 4, 16, 4, 1600)
    before = _trained(few, above)
    with ExitStack() as stack:
        many = _Federation(_Case(D, 4, 16, 4, 1600), above, stack)
        seconds, *training = many.serve()
        _, *predicting = many.serve(predict=True)
    after = _trained(few, above)
    gib = [peak / 2**30 for peak in (*training, *predicting)]
    name = f"network, D={D:,}"
    return [
        Row(f"{name}: a round over one with {SMALL:,} records", 2 * seconds / (before + after), 1.3),
        Row(f"{name}: anonymous memory of the server in training, GiB", gib[0], 2.0),
        Row(f"{name}: anonymous memory of a device in training, GiB", gib[1], 2.0),
        Row(f"{name}: anonymous memory of the server in prediction, GiB", gib[2], 2.0),
        Row(f"{name}: anonymous memory of a device in prediction, GiB", gib[3], 2.0),
    ]


def _many(above: Path) -> list[Row]:
    """Five devices and fifty, in the same number of processes and with the same number of rounds, in turn."""
    taken: dict[int, list[float]] = {5: [], 50: []}
    for _ in range(3):
        for M, seconds in taken.items():
            seconds.append(_trained(_Case(6000, M, 1, 2, 2000), above))
    few, many = (statistics.median(seconds) for seconds in taken.values())
    return [Row("network: a round with 50 devices over one with 5, a head that adds", many / few, 1.3)]


def rows(D: int = LARGE) -> list[Row]:
    """Time and memory with ten million records, and the time of a round with fifty devices."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        return _many(Path(name)) + _records(D, Path(name))


if __name__ == "__main__":
    print(table(rows(*map(int, sys.argv[1:]))))
