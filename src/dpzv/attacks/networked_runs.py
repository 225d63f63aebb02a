"""The same small runs between a server and devices that talk: ids are aligned, frames are packed, links are lost.

All parties are in one process and their links are in memory, so that a run takes a second. Everything else is what
`dpzv server` and `dpzv device` run. The server dies after half of its rounds; another one opens its folder, and the
devices come back to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv import config as configuration
from dpzv.attacks.crashing_runs import BATCH, BATCHES, made_up, small
from dpzv.attacks.target import Target
from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.data.schedule import holdout
from dpzv.errors import PeerError
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.server_party import ServerParty
from dpzv.network.wire import Control, Receipted
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.statement import read_ledger
from dpzv.protocol.messages import Message
from dpzv.runtime.device_view import Shape, ViewLog, ask_for_views
from dpzv.runtime.run_folder import RunFolder

__all__ = ["networked_run"]

TESTED = 2
"""Records that are tested on."""

SECONDS = 60.0
"""A run of a few rounds that takes longer has failed."""


class _Watched(Conversation):
    """A device whose view is kept in the folder of the run, beginning before its first release is applied."""

    def __init__(self, config: Config, features: FeatureRecords, folder: DeviceFolder, run: Path) -> None:
        super().__init__(config, features, folder)
        self._run_folder = run
        self.view: ViewLog | None = None

    def answers(self, message: Control | Message | Receipted) -> Iterator[bytes]:
        if isinstance(message, Receipted) and self.device is not None:
            release = message.release
            if self.view is None:
                shape = Shape(self.m, self._M, release.Delta.size, ())
                self.view = ViewLog(self._run_folder, self.device, shape, begun=False)
            self.view.keep(None, release)
        yield from super().answers(message)


class _Mortal(ServerParty):
    """A server that can be asked when to die."""

    async def half(self) -> None:
        """Return when half of the rounds are made."""
        while self._run is None or 2 * self._run.server.t < self._run.plan.T:
            await asyncio.sleep(0)


def networked_run(target: Target, world: int, noise: NoiseSource, folder: Path) -> PrivacyPlan:
    """Run a world in a new folder with views; its server dies after half of its rounds, and another goes on."""
    change, names = msgspec.structs.replace, tuple(f"device-{m}" for m in range(1, target.M + 1))
    config = small(target.config)
    config = change(
        config,
        data=change(config.data, holdout=TESTED / (BATCH * BATCHES + TESTED), devices=()),
        network=change(config.network, devices=names, order="turns"),
        runtime=change(config.runtime, kind="network"),
    )
    opened = RunFolder.create(folder, configuration.render(config))
    ask_for_views(folder)
    asyncio.run(_together(config, made_up(target, world), noise, opened))
    return read_ledger(folder / "ledger.sqlite").plan


async def _together(config: Config, data: Dataset, noise: NoiseSource, folder: RunFolder) -> None:
    """All parties, until the second server and the devices are done."""
    hashes, order = _ids(len(data.y_train))
    labels = LabelRecords(hashes, _placed(data.y_train, data.y_test, order), data.task, data.n_classes, "audit")
    listener, talks, devices = MemoryListener(config.network.devices), [], []
    first = _Mortal(config, labels, folder, noise)
    serving = asyncio.create_task(first.run(listener))
    await asyncio.sleep(0)  # it listens
    for m, name in enumerate(config.network.devices, 1):
        features = FeatureRecords(hashes, _placed(data.x_train[m - 1], data.x_test[m - 1], order))
        party = DeviceParty(config, features, folder.path / name)
        talk = party.conversation = _Watched(config, features, DeviceFolder(folder.path / name), folder.path)
        talk.noise = noise
        talks.append(talk)
        devices.append(asyncio.create_task(party.run(listener.connector(name))))
    try:
        async with asyncio.timeout(SECONDS):
            dying = asyncio.create_task(first.half())
            await asyncio.wait({serving, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            second = _Mortal(config, labels, RunFolder.existing(folder.path), noise)
            if await second.run(listener) is None:
                raise PeerError("a run over the network stopped before its end; audit it again.")
            await asyncio.gather(*devices)
    finally:
        for task in devices:
            task.cancel()
        await asyncio.gather(*devices, return_exceptions=True)
        for talk in talks:
            if talk.view is not None:
                talk.view.__exit__()


def _ids(n: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Ids for `n` training records and those tested on, in the common order, and which of them is which record."""
    hashes = np.zeros((n + TESTED, 16), np.uint8)
    hashes[:, 0] = np.arange(len(hashes))  # records are ordered by their hashes
    train, test = holdout(len(hashes), TESTED / len(hashes))
    return hashes, np.argsort(np.concatenate([train, test]))


def _placed(train: NDArray[Any], test: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """All records, each at its place in the common order."""
    return np.concatenate([train, test])[order]
