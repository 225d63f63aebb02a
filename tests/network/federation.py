"""A small federation for the tests: digits in four parties, keys, links, and the same run simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.data.alignment import aligned, keyed
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.data.schedule import holdout
from dpzv.network import wire
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import Digests, FeatureRecords, OwnIds
from dpzv.network.grpc_transport import GrpcConnector, GrpcListener
from dpzv.network.keyfiles import Credentials, create_authority, issue_party, read_alignment_key
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.predict import Predictor
from dpzv.network.server_party import ServerParty
from dpzv.network.transport import Connector
from dpzv.runtime.run_folder import RunFolder

NAMES = ("north", "east", "south", "west")
SETTINGS = (
    "runtime.kind=network",
    "runtime.threads=1",
    "data.holdout=0.2",
    "noise.source=seeded",
    "network.order=turns",
    f"network.devices={list(NAMES)}".replace("'", '"'),
    "train.rounds=40",
    "train.eval_every=20",
    "head.refit_steps=20",
)


def config_of(*assignments: str) -> Config:
    """The agreed configuration, with changes."""
    tree = recipes.tree("digits")
    for assignment in (*SETTINGS, *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


def hello(
    config: Config, run_id: str, position: int, hashes: bytes, digests: Digests = wire.NOTHING, **last: Any
) -> wire.Hello:
    """What a device says first, whose hashed ids are `hashes`; `last` are round and receipt of its last release."""
    ids = OwnIds(np.frombuffer(hashes, np.uint8).reshape(-1, 16))
    return wire.hello(config, run_id, position, ids, digests, **last)


class Parties:
    """Everybody's keys and records; each party's file is in an order of its own and lacks some records."""

    def __init__(self, folder: Path) -> None:
        """The parties whose keys lie in `folder`; `made` makes them first."""
        self.folder = folder
        key = read_alignment_key(folder / "server" / "alignment.key")
        data = catalogue.load("digits")
        x, y = data.x_train, data.y_train
        draw = np.random.default_rng(0)
        orders = [draw.permutation(len(y))[: len(y) - 20 * k] for k in range(len(NAMES) + 1)]
        hashes = [keyed([f"record-{i}" for i in order], key) for order in orders]
        self.labels = LabelRecords(hashes[0], y[orders[0]], "classes", 10, "digits")
        self.features = [
            FeatureRecords(h, x[m][o]) for m, (h, o) in enumerate(zip(hashes[1:], orders[1:], strict=True))
        ]

    @classmethod
    def made(cls, folder: Path) -> Parties:
        """New certificates for everybody."""
        create_authority(folder / "ca", 20)
        # the order of records, and so the split, follows from this key: the same in every test
        (folder / "ca" / "alignment.key").write_text("5a" * 32 + "\n")
        for name in ("server", *NAMES):
            issue_party(folder / "ca", name, folder / name, None, 10)
        return cls(folder)

    def credentials(self, name: str) -> Credentials:
        own = self.folder / name
        return Credentials(own / f"{name}.crt", own / f"{name}.key", own / "ca.crt")

    def simulated(self, share: float) -> Dataset:
        """The shared records as one data set, in the common order."""
        found = aligned(self.labels.hashes, [f.hashes for f in self.features])
        train, test = holdout(found.n, share)
        y = self.labels.y[found.rows[0]]
        xs = [f.x[rows] for f, rows in zip(self.features, found.rows[1:], strict=True)]
        parts = [Records([x[rows] for x in xs], y[rows]) for rows in (train, test)]
        return from_arrays(*parts, task="classes", n_classes=10)

    def server(self, config: Config, out: Path) -> ServerParty:
        folder = RunFolder.existing(out) if (out / "config.toml").exists() else None
        return ServerParty(config, self.labels, folder or RunFolder.create(out, configuration.render(config)))

    def device(self, config: Config, m: int, out: Path) -> DeviceParty:
        return DeviceParty(config, self.features[m - 1], out)

    def tls_listener(self) -> GrpcListener:
        """Where the server is reached over TLS, at any free port."""
        return GrpcListener("127.0.0.1:0", self.credentials("server"))

    def tls_connector(self, name: str, port: int) -> GrpcConnector:
        """How a device reaches it."""
        return GrpcConnector(f"localhost:{port}", self.credentials(name), "server")

    async def together(self, config: Config, out: Path, parents: tuple[str, ...] = ()) -> dict[str, Any] | None:
        """Server and devices in one process, without a network; only the server knows of `parents`."""
        change = msgspec.structs.replace
        server = self.server(change(config, privacy=change(config.privacy, parents=parents)), out / "server")
        listener = MemoryListener(NAMES)
        async with serving(server, listener) as finished:
            return await self.finish(config, out, finished, listener.connector)

    async def together_over_tls(self, config: Config, out: Path) -> dict[str, Any] | None:
        """The same, each device over a TLS link of its own."""
        listener = self.tls_listener()
        async with serving(self.server(config, out / "server"), listener) as finished:
            return await self.finish(config, out, finished, lambda name: self.tls_connector(name, listener.port))

    async def finish(
        self,
        config: Config,
        out: Path,
        finished: asyncio.Task[dict[str, Any] | None],
        connector: Callable[[str], Connector],
    ) -> dict[str, Any] | None:
        """All devices, until they and the server are done; the server's summary."""
        devices = [
            asyncio.create_task(self.device(config, m, out / name).run(connector(name)))
            for m, name in enumerate(NAMES, 1)
        ]
        summary = await finished
        await asyncio.wait_for(asyncio.gather(*devices), 30)
        return summary

    async def predicted(self, config: Config, out: Path, n: int = 2, *, shared: bool = False) -> torch.Tensor:
        """Predictions of the first n records (of those that all share) by whoever comes, after the run in `out`."""
        hashes = self.labels.hashes
        if shared:
            hashes = hashes[aligned(hashes, [f.hashes for f in self.features]).rows[0]]
        predictor = Predictor(config, self.labels, RunFolder.existing(out / "server"), lambda: hashes[:n])
        return await self.answered(predictor, config, out)

    async def answered(self, predictor: Predictor, config: Config, out: Path) -> torch.Tensor:
        """What a prediction gives with all devices of the run in `out`."""
        listener = MemoryListener(NAMES)
        task = asyncio.create_task(predictor.run(listener, seconds=20))
        await asyncio.sleep(0)  # it listens
        devices = [
            asyncio.create_task(self.device(config, m, out / name).run(listener.connector(name)))
            for m, name in enumerate(NAMES, 1)
        ]
        try:
            return await task
        finally:
            for device in devices:
                device.cancel()
            await asyncio.gather(*devices, return_exceptions=True)


@asynccontextmanager
async def serving(
    server: ServerParty, listener: MemoryListener | GrpcListener
) -> AsyncIterator[asyncio.Task[dict[str, Any] | None]]:
    """The task of a server that listens; it is stopped with the context."""
    task = asyncio.create_task(server.run(listener))
    while not (listener.port if isinstance(listener, GrpcListener) else listener.talk) and not task.done():
        await asyncio.sleep(0.001)
    try:
        yield task
    finally:
        if not task.done():
            server.stop()
            await asyncio.wait({task}, timeout=10)
