"""What a device answers to its server, from the first hello to the goodbye, over all its links."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.config import Config, per_device
from dpzv.declarations import start_facts
from dpzv.errors import ConfigError, PeerError, PeerRefused
from dpzv.network.device_folder import DeviceFolder, DeviceState
from dpzv.network.feature_records import Digests, FeatureRecords, OwnIds, change_of
from dpzv.network.wire import (
    BATCHES,
    MESSAGE,
    MOST_IDS,
    PART,
    POINTS,
    ROWS,
    Ask,
    Control,
    Counted,
    Done,
    Gathered,
    Hidden,
    ListPiece,
    Receipted,
    Rows,
    Welcome,
    hello,
    pack,
    streamed,
)
from dpzv.protocol.codec import FRAMING, Codec
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Evaluation, Message
from dpzv.runtime.assemble_device import codec_of, make_device, uplink_of
from dpzv.runtime.device_networks import make_network, mixed_columns, with_plain_starts
from dpzv.runtime.run_plan import device_plan, noise_of, sizes_of

__all__ = ["Conversation"]

LOG = logging.getLogger("dpzv.device")


class Conversation:
    """A device's answers, made from its features, its folder and what the server says; it sends nothing itself.

    `device` and `codec` are set once the server has named the rows, `m` once it has said which device this is.
    A private start draws from `noise`.
    """

    def __init__(self, config: Config, features: FeatureRecords, folder: DeviceFolder) -> None:
        self._config, self._features, self._folder = config, features, folder
        self.noise = noise_of(config)
        self._M, self._D, self._psi = len(config.network.devices), 0, config.network.alignment == "psi"
        self._finished = False  # whether these weights are those at the end of a run
        self.device: Device | None = None
        self.codec: Codec | None = None
        self.run_id, self.m = "", 0
        # the request whose list is being received; `None` if no list is expected
        self._announced: Rows | Ask | Hidden | None = None
        self._numbers = Gathered("row numbers", 0, ROWS.itemsize)
        self._points = Counted("hidden ids", 0, POINTS.itemsize)
        self._last = 0, b""  # round and receipt of the last release that was applied
        self._saved = time.monotonic()

    def check(self) -> None:
        """Refuse an encoding that differs from that of the stored weights.

        Until the run has ended, refuse changed records as well.
        """
        records = self._digests.records  # raises if ids are to be hidden and the package for that is missing
        if not self._folder.has_state:
            return
        state = self._folder.state()
        remedy = "put back what was there, or give the device an empty folder for a new run"
        if change := change_of(state.columns, self._features.columns):
            raise ConfigError(f"this device's weights were trained with another encoding: {change}; {remedy}.")
        if not state.finished and state.records != records:
            raise ConfigError(
                f"this device's file holds other records than when its run began; until the end of the run it must "
                f"stay the same: {remedy}."
            )

    @cached_property
    def _own(self) -> OwnIds:
        """This device's ids; what hides them is read from its folder, which is held by then."""
        return OwnIds(self._features.hashes, self._folder.ids_key() if self._psi else b"")

    @cached_property
    def _digests(self) -> Digests:
        """What the server is told of the encoding and the records; if ids are hidden from it, under a key it lacks."""
        return msgspec.structs.replace(self._features, key=self._own.key or self._features.key).digests()

    @property
    def position(self) -> int:
        """How many batches of this device have been answered."""
        return self.device.position if self.device is not None else 0

    def hello(self) -> bytes:
        """The frame that a link begins with. The server answers with everything that this device has missed."""
        self._announced = None
        if self.device is not None:
            self.device.waiting = False  # the server sends the release of the last batch again, or asks for the batch
        state = self._state() if self.device is not None else self._folder.state()
        own = self._own, self._digests
        return pack(hello(self._config, state.run_id, state.position, *own, t=state.t, receipt=state.receipt))

    def answers(self, message: Control | Message | Receipted) -> Iterator[bytes]:
        """Do what the server says, and give the frames to send for it, each to be sent before the next is made."""
        device, codec = self.device, self.codec
        if self._announced is not None:
            yield from self._taken(message, self._announced)
        elif isinstance(message, Welcome):
            yield from self._welcomed(message)
        elif isinstance(message, Rows) and self.m:
            yield from self._expect(message, message.train + message.test, len(self._features.x))
        elif isinstance(message, Hidden):
            self._own.begin(message.ids)
            self._points = Counted("hidden ids", message.ids, POINTS.itemsize)
            self._announced = message if message.ids else None
        elif device is None or codec is None:
            raise PeerError(f"the server sent {type(message).__name__} before the rows; the link is closed.")
        elif isinstance(message, Receipted) and device.waiting:
            device.receive(message.release)
            self._last = message.release.t, message.receipt
            yield codec.encode(device.upload(), MESSAGE)
            device.prepare()
        elif isinstance(message, Receipted):
            device.replay(message.release)
            self._last = message.release.t, message.receipt
        elif isinstance(message, Ask) and (message.what != "rounds" or not device.waiting):
            yield from self._asked(message, device, codec)
        else:
            raise PeerError(f"the server sent {type(message).__name__} out of turn; the link is closed.")
        if self.device is not None and time.monotonic() - self._saved > self._config.runtime.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Write the checkpoint, if there is anything to keep."""
        if self.device is not None:
            self._folder.save(self.device, self._state())
            self._saved = time.monotonic()

    def finish(self) -> None:
        """Keep the weights: the run is over."""
        self._finished = self.device is not None
        self.save()
        if self.device is not None:
            self._folder.keep_weights(self.device)

    def _expect(self, message: Rows | Ask, count: int, most: int) -> Iterator[bytes]:
        """Take note that `count` row numbers follow, and do at once what they are for if there are none."""
        if count > most:
            raise PeerError(f"the server may name at most {most} rows of this device, got {count}; the link is closed.")
        self._announced, self._numbers = message, Gathered("row numbers", count, ROWS.itemsize)
        if not count:
            yield from self._listed(message)

    def _taken(self, message: Control | Message | Receipted, what: Rows | Ask | Hidden) -> Iterator[bytes]:
        """Take a piece of the row numbers, and do what they are for once all are here; answer hidden ids at once."""
        if not isinstance(message, ListPiece):
            name = "hidden ids" if isinstance(what, Hidden) else "row numbers"
            raise PeerError(f"the server must send {name} next, got {type(message).__name__}; the link is closed.")
        if isinstance(what, Hidden):
            points = self._points.take(message).reshape(-1, POINTS.itemsize)
            yield pack(ListPiece(message.start, self._own.answer(points).tobytes()))
            self._announced = None if self._points.complete else what
            return
        self._numbers.take(message)
        if self._numbers.complete:
            yield from self._listed(what)

    def _listed(self, what: Rows | Ask) -> Iterator[bytes]:
        """Do what the row numbers are for: build this device's part of the run, or send embeddings of these rows."""
        self._announced, rows, n = None, self._numbers.entries(ROWS), len(self._features.x)
        if len(rows) and not 0 <= rows.min() <= rows.max() < n:
            raise PeerError(
                f"the server may name rows 0 to {n - 1} of this device's file, got rows {rows.min()} to {rows.max()}; "
                "the link is closed."
            )
        rows = self._own.rows(rows)
        if isinstance(what, Rows):
            if self.device is None:
                self.build(rows[: what.train], rows[what.train :], what.mu_start)
        elif self.device is not None and self.codec is not None:
            yield from self._predicted(rows, self.device, self.codec)

    def build(self, train: NDArray[np.int64], test: NDArray[np.int64], mu_start: float) -> None:
        """This device's part of the run, at its start or at its checkpoint."""
        try:
            self._make(self._config, len(train), self._features.x[train], self._features.x[test], mu_start)
        except ConfigError as error:
            raise PeerError(f"the server's rows do not fit this run ({error}); the link is closed.") from None
        LOG.info("this is device %d: %d train records", self.m, len(train))
        if mixed := mixed_columns(self._config, self.m, self._M, self._features.x.shape[1]):
            LOG.info("%s", mixed)
        if not self._folder.has_state:
            self.save()  # a private start draws noise, so it is drawn once and kept

    def _welcomed(self, message: Welcome) -> Iterator[bytes]:
        if not 1 <= message.m <= self._M:
            raise PeerError(
                f"the server calls this device {message.m}, but the run has {self._M} devices; the link is closed."
            )
        self.m, self.run_id = message.m, message.run_id or self.run_id
        if message.mode == "predict" and self.device is None:
            self._build_to_predict()
        if message.needs_ids:
            yield from streamed(self._own.sent())

    def _asked(self, message: Ask, device: Device, codec: Codec) -> Iterator[bytes]:
        if message.what == "rounds":
            yield codec.encode(device.upload(), MESSAGE)
            return
        if message.what == "predict":
            yield from self._expect(message, message.rows, MOST_IDS)
            return
        parts: Iterator[Message]
        if message.what == "fill":
            parts = device.fill(max(0, message.start))
        else:
            parts = device.evaluate(BATCHES * device.schedule.B)
        for part in parts:
            yield codec.encode(part, MESSAGE)
        yield pack(Done(message.what))

    def _predicted(self, rows: NDArray[np.int64], device: Device, codec: Codec) -> Iterator[bytes]:
        """The embeddings of these rows."""
        width = per_device("devices.embedding", self._config.devices.embedding, self._M)[self.m - 1]
        row = Evaluation(self.m, 0, np.empty((1, width), np.float32))
        chunk = max(1, (PART - FRAMING) // codec.payload_bytes(row))
        for start in range(0, len(rows), chunk):
            x = torch.from_numpy(self._features.x[rows[start : start + chunk]])
            for part in device.embed(x, chunk):
                yield codec.encode(Evaluation(self.m, start, part.h), MESSAGE)
        yield pack(Done("predict"))

    def _build_to_predict(self) -> None:
        """This device as it was trained, for the records that its file holds now."""
        D = self._folder.state().D
        if not D:
            raise PeerRefused(
                "this device needs trained weights for a prediction, but its folder has none; give it its folder back."
            )
        few = self._features.x[:64]  # only the shapes count, since the weights are loaded
        self._make(with_plain_starts(self._config, self._M), D, few, few[:0])

    def _make(
        self, config: Config, D: int, x_train: NDArray[Any], x_test: NDArray[Any], mu_start: float = math.inf
    ) -> None:
        """Make the device, with the weights of its checkpoint if it has one; a private start may cost `mu_start`."""
        m, M, noise = self.m, self._M, self.noise
        plan = device_plan(config, m, M, D)
        if plan is not None and start_facts(plan.starts[m - 1]).private:
            if not mu_start <= plan.mu_start[m - 1]:  # whatever the server says, no less noise than planned here
                mu_start = plan.mu_start[m - 1]
            if not mu_start > 0:
                raise PeerError(
                    f"a private start needs a mu above 0 from the server, got {mu_start}; the link is closed."
                )
            costs = (*plan.mu_start[: m - 1], mu_start, *plan.mu_start[m:])
            plan = msgspec.structs.replace(plan, mu_start=costs)
        network = make_network(config, m, M, x_train, plan, noise)
        x, uplink = (torch.from_numpy(x_train), torch.from_numpy(x_test)), uplink_of(config, plan, noise)
        made = make_device(config, m, network, *x, sizes_of(config, D, M), uplink)
        self.device, self.codec, self._D = made[0], codec_of(config, m, M), D
        if self._folder.has_state:
            state = self._folder.restore(self.device)
            self.run_id, self._last, self._finished = state.run_id, (state.t, state.receipt), state.finished

    def _state(self) -> DeviceState:
        assert self.device is not None
        bound = self._features.columns, self._digests.records
        return DeviceState(self.run_id, self.device.position, self._D, *self._last, *bound, self._finished)
