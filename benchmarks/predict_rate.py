"""Records per second of `dpzv predict`, compared with the same trained models in one process.

Server and devices are processes on loopback with mutual TLS; the devices hold their records in memory, as
`dpzv device --stay` does. Both ways begin with a list of ids and end with a list of predictions; they alternate, and
the figure is the ratio of the median rates.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from benchmarks.bar import Row
from benchmarks.device_processes import credentials, issue_keys, port_of, spawned
from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.alignment import keyed
from dpzv.models.final_head import load_head
from dpzv.models.losses import predictions
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.grpc_transport import GrpcConnector, GrpcListener
from dpzv.network.predict import Predictor
from dpzv.network.server_party import ServerParty
from dpzv.protocol.messages import CHUNK
from dpzv.runtime.device_networks import make_network
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import noise_of

__all__ = ["rows"]

N, ASKED, M, OUTPUTS = 60_000, 50_000, 4, 10
MODELS = {"cnn": (196, 16), "linear": (96, 48)}
"""Columns and embedding width of a device: a quarter of an image as in recipe mnist, a party as in recipe flights."""
REPEATS = 3
BAR = 0.5
KEY = bytes(32)
NAMES = [f"device-{m}" for m in range(1, M + 1)]
IDS = [f"record-{i}" for i in range(N)]


def _config(model: str) -> Config:
    """A run of only a few rounds, since only the rate of predictions counts."""
    return configuration.parse(
        {
            "data": {"name": "mnist", "holdout": 0.95},
            "devices": {"model": model, "embedding": MODELS[model][1]},
            "train": {"rounds": 8, "B": 512, "eval_every": 10**9},
            "head": {"rule": "frozen", "hidden": 128, "refit_steps": 20},
            "noise": {"source": "seeded"},
            "network": {"devices": NAMES},
            "runtime": {"kind": "network", "threads": 1},
        }
    )


def _x(model: str, m: int) -> NDArray[np.float32]:
    return np.random.default_rng(m).standard_normal((N, MODELS[model][0]), dtype=np.float32)


def _labels() -> LabelRecords:
    y = np.random.default_rng(0).integers(0, OUTPUTS, N)
    return LabelRecords(keyed(IDS, KEY), y, "classes", OUTPUTS, "random")


def _device(model: str, m: int, folder: Path, orders: Connection) -> None:
    """Run one device in a process of its own; it connects to each port it is told, and reports its processor time."""
    torch.set_num_threads(1)
    loop = asyncio.new_event_loop()
    device = DeviceParty(_config(model), FeatureRecords(keyed(IDS, KEY), _x(model, m)), folder / NAMES[m - 1])
    own = credentials(folder / "keys", NAMES[m - 1])
    orders.send(0.0)
    while (port := orders.recv()) is not None:
        began = time.process_time()
        loop.run_until_complete(device.run(GrpcConnector(f"127.0.0.1:{port}", own, "server")))
        orders.send(time.process_time() - began)


class _Parties:
    """Keys, the devices' processes, and the trained run of the server."""

    def __init__(self, model: str, folder: Path, stack: ExitStack) -> None:
        self._model, self.folder, self._pipes = model, folder, list[Connection]()
        self._devices = 0.0  # processor seconds that all devices together spent on the last order
        issue_keys(folder / "keys", NAMES)
        for m in range(1, M + 1):
            self._pipes += spawned(partial(_device, model, m, folder), 1, stack)
        for pipe in self._pipes:
            pipe.recv()

    async def train(self) -> None:
        """Train a run to its end."""
        config = _config(self._model)
        server = ServerParty(config, _labels(), RunFolder.create(self.folder / "server", configuration.render(config)))
        await self._with_devices(server.run)

    async def predict(self, ids: list[str], spent: dict[str, float]) -> list[int]:
        """Predict the records `ids` over the network; `spent` is told where the time goes."""
        labels, folder = _labels(), RunFolder.existing(self.folder / "server")
        began, worked = time.perf_counter(), time.process_time()
        predictor = Predictor(_config(self._model), labels, folder, partial(keyed, ids, KEY))
        output = await self._with_devices(partial(predictor.run, seconds=60))
        found: list[int] = predictions("classes", output).tolist()
        spent["all"] = time.perf_counter() - began
        spent["server's processor"], spent["devices' processors"] = time.process_time() - worked, self._devices
        return found

    async def _with_devices(self, serve: Callable[[GrpcListener], Coroutine[Any, Any, Any]]) -> Any:
        listener = GrpcListener("127.0.0.1:0", credentials(self.folder / "keys", "server"))
        task = asyncio.create_task(serve(listener))
        port = await port_of(listener, task)
        for pipe in self._pipes:
            pipe.send(port)
        result = await task
        self._devices = sum([await asyncio.to_thread(pipe.recv) for pipe in self._pipes])
        return result


class _Together:
    """All devices' records and networks, and the head, in this process."""

    def __init__(self, model: str, folder: Path) -> None:
        config = _config(model)
        noise = noise_of(config)
        self._x = [_x(model, m) for m in range(1, M + 1)]
        self._networks = [make_network(config, m, M, x[:64], None, noise).eval() for m, x in enumerate(self._x, 1)]
        for m, (name, network) in enumerate(zip(NAMES, self._networks, strict=True), 1):
            network.load_state_dict(load_file(folder / name / "weights" / f"device-{m}.safetensors"))
        self._head = load_head(folder / "server" / "weights")
        self._place = {name: i for i, name in enumerate(IDS)}

    @torch.no_grad()
    def predict(self, ids: list[str], spent: dict[str, float]) -> list[int]:
        """Predict the records `ids` in this process; `spent` is told where the time goes."""
        began = time.perf_counter()
        rows = np.array([self._place[name] for name in ids])
        spent["find ids"] = time.perf_counter() - began
        parts = []
        for x, network in zip(self._x, self._networks, strict=True):
            mine = torch.from_numpy(x[rows])
            parts.append(torch.cat([network(mine[i : i + CHUNK]) for i in range(0, len(mine), CHUNK)]))
        spent["networks"] = time.perf_counter() - began - spent["find ids"]
        found: list[int] = predictions("classes", self._head(torch.cat(parts, 1))).tolist()
        spent["all"] = time.perf_counter() - began
        return found


def _measured(model: str) -> float:
    """Records per second over the network over those in one process; prints where the time goes."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        parties = _Parties(model, Path(name), stack)
        asyncio.run(parties.train())
        together = _Together(model, parties.folder)
        ids = [IDS[i] for i in np.random.default_rng(1).permutation(N)[:ASKED]]
        spent: dict[str, list[dict[str, float]]] = {"network": [], "one process": []}
        for _ in range(REPEATS):
            far, near = dict[str, float](), dict[str, float]()
            if asyncio.run(parties.predict(ids, far)) != together.predict(ids, near):
                raise AssertionError("network and one process must predict the same, but do not; one of them is wrong")
            spent["network"].append(far)
            spent["one process"].append(near)
    rates = []
    for way, found in spent.items():
        parts = {part: statistics.median(one[part] for one in found) for part in found[0]}
        rates.append(ASKED / parts["all"])
        told = ", ".join(f"{part} {1000 * seconds:.0f} ms" for part, seconds in parts.items())
        print(f"predict, {model}, {way}: {rates[-1]:.0f} records/s: {told}", file=sys.stderr)
    return rates[0] / rates[1]


def rows() -> list[Row]:
    """One row for each model: the rate of predictions over the network over that in one process."""
    torch.set_num_threads(1)
    return [Row(f"predict: records/s over one process, {model}", _measured(model), BAR, most=False) for model in MODELS]
