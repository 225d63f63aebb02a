"""A device as a state machine without I/O: it holds its features and w_m, and nothing of anybody else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.data.schedule import BatchSchedule
from dpzv.errors import PeerError
from dpzv.methods.rules import DeviceRule
from dpzv.protocol.gather import gather
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release

__all__ = ["Device"]

CHUNK = 8192
"""Records a `Fill` or `Evaluation` message; bounds the memory of a whole-table upload."""


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
        self._x_train, self._x_test, self._schedule = x_train, x_test, schedule
        self.waiting = False
        self._next: tuple[int, torch.Tensor] | None = None  # features that were gathered before their turn

    def fill(self, first: int = 0) -> Iterator[Fill]:
        """The embeddings of all train records from `first` on under the present w_m, in chunks."""
        for start in range(first, len(self._x_train), CHUNK):
            yield Fill(self.m, start, _values(self.method.fill(self._x_train[start : start + CHUNK], start)))

    def evaluate(self) -> Iterator[Evaluation]:
        """The embeddings of all test records under the present w_m, in chunks."""
        yield from self.embed(self._x_test)

    def embed(self, x: torch.Tensor, chunk: int = CHUNK) -> Iterator[Evaluation]:
        """The embeddings of records outside training under the present w_m, in chunks."""
        for start in range(0, len(x), chunk):
            h = self.method.evaluate(x[start : start + chunk].to(self._x_train.device))
            yield Evaluation(self.m, start, _values(h))

    def features(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """The device's own features of the records `ids`."""
        return gather(self._x_train, ids)

    def _batch(self, position: int) -> torch.Tensor:
        return self.features(self._schedule.ids(position))

    def upload(self) -> Embeddings:
        """The embeddings of the next batch; the same ones again until its release is received."""
        ready, self._next = self._next, None
        x = ready[1] if ready is not None and ready[0] == self.position else self._batch(self.position)
        h = self.method.embeddings(x, self.position)
        self.waiting = True
        return Embeddings(self.m, self.position, tuple(map(_values, h)))

    def prepare(self) -> None:
        """Gather the features of the batch after this one: done while the server is at work."""
        self._next = self.position + 1, self._batch(self.position + 1)

    def replay(self, release: Release) -> None:
        """Apply a release to a batch that was uploaded in an earlier life of this device."""
        self.upload()
        self.receive(release)

    def receive(self, release: Release) -> None:
        """Apply the release of the batch that was uploaded last."""
        if not self.waiting or (release.m, release.position) != (self.m, self.position):
            raise PeerError(
                f"device {self.m} expected the release of its batch {self.position}, got one for batch "
                f"{release.position} of device {release.m}; the server is closed."
            )
        self.method.update(release.Delta, position=release.position, t=release.t)
        self.position += 1
        self.waiting = False


def _values(h: torch.Tensor) -> NDArray[np.float32]:
    """The numbers of `h` in main memory."""
    return h.numpy(force=True)
