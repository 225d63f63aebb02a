"""A device as a state machine without I/O: it holds its features and w_m, and nothing of anybody else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.data.schedule import BatchSchedule
from dpzv.errors import PeerError
from dpzv.methods.rules import DeviceRule
from dpzv.protocol.messages import CHUNK, Embeddings, Evaluation, Fill, Release
from dpzv.protocol.table import gather

__all__ = ["Device"]


class Device:
    """Device m: `fill`, then `upload` and `receive` in turn; `evaluate` at any time.

    `position` counts the device's own rounds and is its place in its public batch schedule.
    """

    def __init__(
        self, m: int, method: DeviceRule, x_train: torch.Tensor, x_test: torch.Tensor, schedule: BatchSchedule
    ) -> None:
        self.m = m
        self.method = method
        self.position = 0
        self.x_train, self.x_test, self.schedule = x_train, x_test, schedule
        self.waiting = False
        self._ready: dict[int, torch.Tensor] = {}  # features that were gathered before their turn, by position

    def fill(self, first: int = 0) -> Iterator[Fill]:
        """The embeddings of all train records from `first` on under the present w_m, in chunks."""
        for start in range(first, len(self.x_train), CHUNK):
            h = self.method.fill(self.x_train[start : start + CHUNK], start)
            yield Fill(self.m, start, h.numpy(force=True))

    def evaluate(self, chunk: int = CHUNK) -> Iterator[Evaluation]:
        """The embeddings of all test records under the present w_m, in chunks."""
        yield from self.embed(self.x_test, min(chunk, CHUNK))

    def embed(self, x: torch.Tensor, chunk: int = CHUNK) -> Iterator[Evaluation]:
        """The embeddings of records outside training under the present w_m, in chunks."""
        for start in range(0, len(x), chunk):
            h = self.method.evaluate(x[start : start + chunk].to(self.x_train.device))
            yield Evaluation(self.m, start, h.numpy(force=True))

    def upload(self) -> Embeddings:
        """The embeddings of the next batch; the same ones again until its release is received."""
        x = self._ready.pop(self.position, None)
        if x is None:
            x = gather(self.x_train, self.schedule.ids(self.position))
        h = list[NDArray[np.float32]]()
        for one in self.method.embeddings(x, self.position):
            h.append(one.numpy(force=True))
        self.waiting = True
        return Embeddings(self.m, self.position, tuple(h))

    def prepare(self) -> None:
        """Gather the features of the batch after this one, while the server is still at work on this one."""
        position = self.position + 1
        self._ready = {position: gather(self.x_train, self.schedule.ids(position))}

    def replay(self, release: Release) -> None:
        """Apply a release to a batch that was uploaded before this device was started again."""
        self.upload()
        self.receive(release)

    def receive(self, release: Release) -> None:
        """Apply the release of the batch that was uploaded last."""
        if not self.waiting or (release.m, release.position) != (self.m, self.position):
            raise PeerError(
                f"device {self.m} expected the release of its batch {self.position}, got one for batch "
                f"{release.position} of device {release.m}; the link is closed."
            )
        self.method.update(release.Delta, position=release.position, t=release.t)
        self.position += 1
        self.waiting = False
