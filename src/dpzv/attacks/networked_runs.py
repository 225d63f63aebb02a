"""The small runs of `crashing_runs.py` between parties that talk: ids are aligned, frames packed, and links lost.

All parties are in one process and their links are in memory, so that a run takes a second. Everything else is what
`dpzv server` and `dpzv device` run. The server dies after half of its rounds; another one opens its folder, and the
devices come back to it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv import config as configuration
from dpzv.attacks.audited_parties import MortalServer, WatchedDevice
from dpzv.attacks.crashing_runs import BATCH, BATCHES, made_up, small
from dpzv.attacks.target import Target
from dpzv.data.schedule import holdout
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.memory_transport import MemoryListener
from dpzv.privacy.noise import NoiseSource
from dpzv.runtime.device_view import ask_for_views
from dpzv.runtime.run_folder import RunFolder

__all__ = ["networked_run"]

TESTED = 2
"""Records that are tested on."""

SECONDS = 60.0
"""A run of a few rounds that takes longer has failed."""


def networked_run(target: Target, world: int, noise: NoiseSource, folder: Path) -> None:
    """Run a world in a new folder with views; its server dies after half of its rounds, and another goes on."""
    change, names = msgspec.structs.replace, tuple(f"device-{m}" for m in range(1, target.M + 1))
    config = small(target.config)
    config = change(
        config,
        data=change(config.data, holdout=TESTED / (BATCH * BATCHES + TESTED), devices=()),
        network=change(config.network, devices=names, order="turns"),
        runtime=change(config.runtime, kind="network"),
    )
    opened, data = RunFolder.create(folder, configuration.render(config)), made_up(target, world)
    ask_for_views(folder)
    hashes, order = _ids(len(data.y_train))
    labels = LabelRecords(hashes, _placed(data.y_train, data.y_test, order), data.task, data.n_classes, "audit")
    devices = []
    for name, x, x_test in zip(names, data.x_train, data.x_test, strict=True):
        features = FeatureRecords(hashes, _placed(x, x_test, order))
        devices.append(WatchedDevice(config, features, folder / name, folder, noise))
    servers = [MortalServer(config, labels, run) for run in (opened, RunFolder.existing(folder))]
    for server in servers:
        server.noise = noise
    asyncio.run(_together(servers, devices, MemoryListener(names)))


async def _together(servers: list[MortalServer], parties: list[WatchedDevice], listener: MemoryListener) -> None:
    """All parties, until the second server and the devices are done."""
    first, second = servers
    serving, dying = asyncio.create_task(first.run(listener)), asyncio.create_task(first.half())
    await asyncio.sleep(0)  # it listens
    devices = [
        asyncio.create_task(party.run(listener.connector(name)))
        for name, party in zip(listener.known, parties, strict=True)
    ]
    try:
        async with asyncio.timeout(SECONDS):
            await asyncio.wait({serving, dying}, return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            await second.run(listener)
            await asyncio.gather(*devices)
    finally:
        for task in (dying, *devices):
            task.cancel()
        await asyncio.gather(*devices, return_exceptions=True)
        for party in parties:
            party.close()


def _ids(n: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Ids for `n` training records and those tested on, in the common order, and which of them is which record."""
    hashes = np.zeros((n + TESTED, 16), np.uint8)
    hashes[:, 0] = np.arange(len(hashes))  # records are ordered by their hashes
    train, test = holdout(len(hashes), TESTED / len(hashes))
    return hashes, np.argsort(np.concatenate([train, test]))


def _placed(train: NDArray[Any], test: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """All records, each at its place in the common order."""
    return np.concatenate([train, test])[order]
