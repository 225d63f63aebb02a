"""A coalition's own part of a run, computed again from its views: weights, batches, and what it sent, turn by turn."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.config import per_device
from dpzv.declarations import method_facts
from dpzv.methods.rules import Uplink
from dpzv.privacy.noise import SeededNoise
from dpzv.protocol.bounds import bounded
from dpzv.protocol.messages import Embeddings, Release
from dpzv.runtime.assemble_device import codec_of, make_device
from dpzv.runtime.device_networks import make_network, with_plain_starts
from dpzv.runtime.device_view import DeviceView
from dpzv.runtime.run_plan import sizes_of

__all__ = ["Coalition", "Member", "Turn"]

CHUNK = 8192
"""Records that are embedded at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One round of device m, as it knows it: whose records, what it sent for them, and what came back.

    `h` are the embeddings [B, k] as the server took them: rows beyond its public bound are zeros.
    """

    t: int
    m: int
    position: int
    ids: NDArray[np.int64]
    h: tuple[NDArray[np.float32], ...]
    Delta: NDArray[np.float64]


class Member:
    """One device of a coalition. `turns` may be walked once; it moves the device's weights as the run did."""

    def __init__(self, view: DeviceView) -> None:
        self.view, self.m = view, view.shape.m
        config, M, x = view.config, view.shape.M, view.x_train
        self._codec = codec_of(config, self.m, M)
        network = make_network(with_plain_starts(config, M), self.m, M, x[:64].numpy(), None, SeededNoise(0))
        network.load_state_dict(view.start)
        sizes = sizes_of(config, len(x), M)
        # noise of its own is in the rows that the view has; only their clip is computed again
        uplink = Uplink(config.privacy.C_h if view.shape.sent else math.inf, 0.0, lambda shape, stream: np.zeros(shape))
        self._device, self.width = make_device(config, self.m, network, x, view.x_test, sizes, uplink)
        self.network = self._device.method.network
        self._asked = False

    @property
    def lam(self) -> float:
        """The device's smoothing radius."""
        return float(per_device("train.lam", self.view.config.train.lam, self.view.shape.M)[self.m - 1])

    @property
    def first(self) -> NDArray[np.int64]:
        """The records of the device's first batch."""
        return self._device.schedule.ids(0)

    @property
    def took(self) -> NDArray[np.int64]:
        """The records that are in any turn of the device."""
        parts = [self._device.schedule.ids(position) for position in range(len(self.view.t))]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def rows(self, x: torch.Tensor) -> NDArray[np.float32]:
        """Embeddings of records under the present weights, as the server takes them."""
        parts = [self._device.method.evaluate(x[at : at + CHUNK]).numpy() for at in range(0, len(x), CHUNK)]
        return bounded((np.concatenate(parts),))[0][0]

    def sent_for(self, x: torch.Tensor, position: int) -> tuple[NDArray[np.float32], ...]:
        """What the device would send for any records at a position of its schedule, under the present weights."""
        self._asked = True
        return bounded(tuple(one.detach().numpy() for one in self._device.method.embeddings(x, position)))[0]

    def twins(self, turn: Turn) -> tuple[NDArray[np.float32], ...]:
        """What the device would have sent in its present turn for as many test records in the places of its batch."""
        return self.sent_for(self.view.x_test[turn.ids % len(self.view.x_test)], turn.position)

    def turns(self) -> Iterator[Turn]:
        """All turns of the device in their order."""
        view, device, facts = self.view, self._device, method_facts(self.view.config.train.method)
        for position, (t, Delta) in enumerate(zip(view.t.tolist(), view.Delta, strict=True)):
            ids = device.schedule.ids(position)
            message = device.upload()
            h = self._sent(message) if view.sent is None else tuple(view.sent[position])
            yield Turn(t, self.m, position, ids, bounded(h)[0], Delta)
            if facts.backpropagates and self._asked:
                device.upload()  # the device must go back through this batch, not through the records of `sent_for`
            self._asked = False
            device.receive(Release(t, self.m, position, Delta))

    def _sent(self, message: Embeddings) -> tuple[NDArray[np.float32], ...]:
        received = self._codec.decode(self._codec.encode(message))
        assert isinstance(received, Embeddings)
        return received.h


@dataclass(slots=True, eq=False)
class Coalition:
    """Devices that put together what they saw. A row has the columns of all M devices; those of others stay 0."""

    members: list[Member]
    columns: dict[int, slice] = field(init=False)
    width: int = field(init=False)
    _start: dict[bool, NDArray[np.float32]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        config, M = self.members[0].view.config, self.members[0].view.shape.M
        widths = per_device("devices.embedding", config.devices.embedding, M)
        ends = np.cumsum(widths).tolist()
        self.columns = {one.m: slice(ends[one.m - 1] - one.width, ends[one.m - 1]) for one in self.members}
        self.width = ends[-1]

    @classmethod
    def of(cls, views: Sequence[DeviceView]) -> Coalition:
        """The devices of these views, as they started."""
        return cls([Member(view) for view in views])

    def without(self, m: int) -> Coalition:
        """The others, as they started; rows that were computed at the start are taken over."""
        others = Coalition.of([one.view for one in self.members if one.m != m])
        for test, rows in self._start.items():
            others._start[test] = rows.copy()
            others._start[test][:, self.columns[m]] = 0.0
        return others

    def start(self, *, test: bool = False) -> NDArray[np.float32]:
        """Rows [D, width] of all train or all test records at the start; it must be asked for before the first turn."""
        if test not in self._start:
            self._start[test] = self.rows(test=test)
        return self._start[test]

    def rows(self, ids: NDArray[np.int64] | None = None, *, test: bool = False) -> NDArray[np.float32]:
        """Rows [n, width] of these (or all) train or test records under the present weights."""
        parts = {one.m: one.rows(_some(one.view, ids, test)) for one in self.members}
        found = np.zeros((len(parts[self.members[0].m]), self.width), np.float32)
        for m, part in parts.items():
            found[:, self.columns[m]] = part
        return found

    def own(self, ids: NDArray[np.int64] | None = None, *, test: bool = False) -> NDArray[np.float32]:
        """The members' raw features [n, d] of these (or all) records, scaled to a deviation of about 1.

        Token ids are left out.
        """
        parts = []
        for view in (one.view for one in self.members):
            if view.x_train.dtype != torch.int32:
                some = view.x_train[:CHUNK].float()
                scale = some.std(dim=0).clamp(min=1e-6)
                parts.append((_some(view, ids, test).float() - some.mean(dim=0)) / scale)
        return torch.cat(parts, dim=1).numpy() if parts else self.rows(ids, test=test)

    @property
    def took(self) -> NDArray[np.int64]:
        """The train records that are in any turn."""
        return np.unique(np.concatenate([one.took for one in self.members]))

    def turns(self) -> Iterator[Turn]:
        """The turns of all members in the order of the rounds."""
        yield from heapq.merge(*(one.turns() for one in self.members), key=lambda turn: turn.t)


def _some(view: DeviceView, ids: NDArray[np.int64] | None, test: bool) -> torch.Tensor:
    x = view.x_test if test else view.x_train
    return x if ids is None else x[torch.from_numpy(ids)]
