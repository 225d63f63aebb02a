"""A small federation for the tests: digits in four parties, keys, and the same run simulated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.data.alignment import aligned, keyed
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.data.schedule import holdout
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.credentials import Credentials, channel_credentials, server_credentials
from dpzv.network.device_party import DeviceParty, FeatureRecords
from dpzv.network.keyfiles import create_authority, issue_party, read_alignment_key
from dpzv.network.server_party import ServerParty
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
    "head.refit_epochs=2",
)


def config_of(*assignments: str) -> Config:
    """The agreed configuration, with changes."""
    tree = recipes.tree("digits")
    for assignment in (*SETTINGS, *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


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

    def host(self, config: Config, out: Path) -> ServerParty:
        folder = RunFolder.existing(out) if (out / "config.toml").exists() else None
        return ServerParty(config, self.labels, folder or RunFolder.create(out, configuration.render(config)))

    def guest(self, config: Config, m: int, out: Path) -> DeviceParty:
        return DeviceParty(config, self.features[m - 1], out)

    async def together(self, config: Config, out: Path, parents: tuple[str, ...] = ()) -> dict[str, Any] | None:
        """Server and devices in one process, each over its own TLS link; only the server knows of `parents`."""
        change = msgspec.structs.replace
        host = self.host(change(config, privacy=change(config.privacy, parents=parents)), out / "server")
        serving = asyncio.create_task(host.run("127.0.0.1:0", server_credentials(self.credentials("server"))))
        while not host.port:
            await asyncio.sleep(0.01)
        guests = []
        for m, name in enumerate(NAMES, 1):
            guest = self.guest(config, m, out / name)
            make = lambda name=name: channel_credentials(self.credentials(name))  # noqa: E731
            guests.append(asyncio.create_task(guest.run(f"localhost:{host.port}", make, server="server")))
        summary = await serving
        await asyncio.wait_for(asyncio.gather(*guests), 30)
        return summary
