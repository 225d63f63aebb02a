"""Parties of an audited run: a device that keeps what it sees, and a server that has the audit's noise and may die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from dpzv.config import Config
from dpzv.network.beginning import open_run
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.server_party import ServerParty
from dpzv.network.wire import Control, Receipted
from dpzv.privacy.noise import NoiseSource
from dpzv.protocol.messages import Message
from dpzv.runtime.device_view import Shape, ViewLog
from dpzv.runtime.server_run import ServerRun

__all__ = ["MortalServer", "WatchedDevice"]


class _Watched(Conversation):
    """A device's answers; its view is kept in the folder `run`, beginning before its first release is applied."""

    run: Path
    view: ViewLog | None = None

    def answers(self, message: Control | Message | Receipted) -> Iterator[bytes]:
        """The device's answers; a release is kept before it is applied."""
        if isinstance(message, Receipted) and self.device is not None:
            release = message.release
            if self.view is None:
                shape = Shape(self.m, self._M, release.Delta.size, ())
                self.view = ViewLog(self.run, self.device, shape, begun=False)
            self.view.keep(None, release)
        yield from super().answers(message)


class WatchedDevice(DeviceParty):
    """A device of the run in the folder `run`, which also gets its view; a private start draws from `noise`."""

    def __init__(self, config: Config, features: FeatureRecords, folder: Path, run: Path, noise: NoiseSource) -> None:
        super().__init__(config, features, folder)
        self._watched = _Watched(config, features, DeviceFolder(folder))
        self._watched.run, self._watched.noise = run, noise
        self.conversation = self._watched

    def close(self) -> None:
        """Nothing more is kept."""
        if self._watched.view is not None:
            self._watched.view.__exit__()


class MortalServer(ServerParty):
    """A server that draws from `noise`, and tells when half of its rounds are made."""

    noise: NoiseSource

    async def half(self) -> None:
        """Return when half of the rounds are made."""
        while self._run is None or 2 * self._run.server.t < self._run.plan.T:
            await asyncio.sleep(0)

    def _open(self) -> ServerRun:
        return open_run(self._config, self._alignment, self._folder, self.noise)
