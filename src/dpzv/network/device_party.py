"""A device of a networked run: it connects, is told its rows, and sends what it is asked for until the goodbye.

Its weights are checkpointed in its own folder. After a crash it comes back with what the checkpoint says, and the
server sends it the releases it has missed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from dpzv.config import Config, per_device
from dpzv.declarations import start_facts
from dpzv.durable import write_tensors
from dpzv.errors import ConfigError, DataError, PeerError
from dpzv.network.link import GOODBYE_SECONDS, LONGEST_PAUSE, LOST, PART, Stream, open_stream
from dpzv.network.wire import Ask, Control, Done, Ids, Rows, Stop, Welcome, hello, pack, pack_message, shown, unpack
from dpzv.protocol.codec import Codec
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Evaluation, Message, Release
from dpzv.runtime.assemble_device import codec_of, make_device
from dpzv.runtime.device_networks import make_network
from dpzv.runtime.run_plan import noise_of, plan_of

__all__ = ["DeviceParty", "FeatureRecords"]

LOG = logging.getLogger("dpzv.device")
STATE = "state.safetensors"
UNHEARD = (
    "; it never answered: check its address, that it runs, and with `dpzv keys show` that both certificates are of one "
    "authority and not expired"
)
OVERHEAD = 64
"""Bytes of a frame beside its embeddings, at most."""
STAYING_PAUSE = 3.0
"""Seconds between two attempts of a device that waits for somebody who wants predictions, at most."""


class FeatureRecords(msgspec.Struct, frozen=True):
    """A device's own records: hashed ids uint8 [n, 16] and features [n, d_m]."""

    hashes: NDArray[np.uint8]
    x: NDArray[Any]


class _State(msgspec.Struct, frozen=True):
    """The plain values of a device's checkpoint."""

    run_id: str
    position: int
    D: int = 0


class DeviceParty:
    """A device between its features and its folder."""

    def __init__(self, config: Config, features: FeatureRecords, folder: Path) -> None:
        self._config, self._features, self._folder = config, features, folder
        self._device: Device | None = None
        self._codec: Codec | None = None
        self._run_id, self._m, self._D = "", 0, 0
        self._stopping = asyncio.Event()
        self._writing = asyncio.Lock()
        self._leave: Callable[[], Coroutine[Any, Any, None]] | None = None  # how to end the session at hand
        self._leaving: asyncio.Task[None] | None = None
        self._saved = time.monotonic()

    async def run(
        self, address: str, credentials: Callable[[], grpc.ChannelCredentials], *, server: str, stay: bool = False
    ) -> None:
        """Take part until the party called `server` says that the run is finished; connect again when the link is lost.

        With `stay` it goes on after that, for predictions, until it is stopped.
        """
        pause, longest = 0.5, LONGEST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if await self._connect(address, credentials(), server):
                    if not stay:
                        return
                    longest = STAYING_PAUSE
            except LOST as error:
                LOG.warning("the link to the server is lost (%s)%s", _short(error), "" if self._m else UNHEARD)
            except PeerError as error:
                LOG.error("%s", error)
            except (ConfigError, DataError) as error:
                if not self._run_id:  # nothing has begun: whoever started this should hear of it
                    raise
                LOG.error("%s", error)  # such as a certificate that is being renewed
            pause = 0.5 if time.monotonic() - began > 60 else min(longest, 2 * pause)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause * random.uniform(0.5, 1.0))
            except TimeoutError:
                LOG.info("connecting again")

    def stop(self) -> None:
        """Say goodbye after the message at hand; weights are kept."""
        self._stopping.set()
        if self._leave is not None and self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())

    async def _connect(self, address: str, credentials: grpc.ChannelCredentials, server: str) -> bool:
        """One session; true if it ended for good."""
        channel, stream = open_stream(address, credentials, server)

        talking = asyncio.current_task()
        assert talking is not None

        async def leave() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._goodbye(stream, "stopped by its operator", final=False)
                    await asyncio.Event().wait()  # the server ends the stream, and with it the session
            talking.cancel()  # if it does not

        self._leave = leave
        try:
            return await self._talk(stream)
        except (asyncio.CancelledError, *LOST):
            if self._leaving is None:
                raise
            talking.uncancel()
            return True
        finally:
            self._leave = None
            if self._leaving is not None:
                self._leaving.cancel()
            if self._device is not None:
                self._save()
            await channel.close()

    async def _talk(self, stream: Stream) -> bool:
        if self._device is not None:
            self._device.waiting = False  # the server sends the release of the last batch again, or asks for the batch
        state = self._known()
        hashes = self._features.hashes.tobytes()
        await self._write(stream, pack(hello(self._config, state.run_id, state.position, hashes)))
        while True:
            message = await self._read(stream)
            if isinstance(message, Stop):
                return await self._end(stream, message)
            try:
                await self._answer(stream, message, hashes)
            except LOST:  # the server may have closed this device while it wrote
                stop = await self._last_words(stream)
                if stop is None:
                    raise
                return await self._end(stream, stop)
            if self._device is not None and time.monotonic() - self._saved > self._config.runtime.checkpoint_seconds:
                self._save()

    async def _end(self, stream: Stream, stop: Stop) -> bool:
        """The server's goodbye; true if it is for good."""
        LOG.info("the server says goodbye: %s", shown(stop.reason))
        if stop.final and self._device is not None:
            self._save()
            self._finish(self._device)
        await self._goodbye(stream, "goodbye", final=stop.final)
        return stop.final

    async def _goodbye(self, stream: Stream, reason: str, *, final: bool) -> None:
        with suppress(*LOST):  # who has said goodbye already may be gone
            async with self._writing:
                await stream.write(pack(Stop(reason, final)))
                await stream.done_writing()

    async def _write(self, stream: Stream, frame: bytes) -> None:
        async with self._writing:  # a goodbye may come at any time
            await stream.write(frame)

    async def _answer(self, stream: Stream, message: Control | Message, hashes: bytes) -> None:
        """Do what the server says."""
        if isinstance(message, Welcome):
            if not 1 <= message.m <= len(self._config.network.devices):
                raise PeerError(
                    f"the server says that this is device {message.m}, which the run has not; it is closed."
                )
            self._m, self._run_id = message.m, message.run_id or self._run_id
            if message.mode == "predict" and self._device is None:
                self._build_to_predict()
            if message.needs_ids:
                await self._write(stream, pack(Ids(hashes)))
            return
        if isinstance(message, Rows) and self._m:
            if self._device is None:
                self._build(message)
            return
        device, codec = self._device, self._codec
        if device is None or codec is None:
            raise PeerError(f"the server sent {type(message).__name__} before the rows; it is closed.")
        if isinstance(message, Release):
            if device.waiting:
                device.receive(message)
                await self._write(stream, pack_message(codec, device.upload()))
                device.prepare()
            else:
                device.replay(message)
        elif isinstance(message, Ask) and message.what == "rounds" and not device.waiting:
            await self._write(stream, pack_message(codec, device.upload()))
        elif isinstance(message, Ask) and message.what in ("fill", "evaluate"):
            for part in device.fill(max(0, message.start)) if message.what == "fill" else device.evaluate():
                await self._write(stream, pack_message(codec, part))
            await self._write(stream, pack(Done(message.what)))
        elif isinstance(message, Ask) and message.what == "predict":
            rows = torch.from_numpy(self._features.x[self._own_rows(message.rows)])
            width = per_device("devices.embedding", self._config.devices.embedding, len(self._config.network.devices))
            row = Evaluation(self._m, 0, np.empty((1, width[self._m - 1]), np.float32))
            fits = (PART - OVERHEAD) // codec.payload_bytes(row)  # frames that need not go in parts
            for part in device.embed(rows, max(1, fits)):
                await self._write(stream, pack_message(codec, part))
            await self._write(stream, pack(Done("predict")))
        else:
            raise PeerError(f"the server sent {type(message).__name__} out of turn; it is closed.")

    async def _last_words(self, stream: Stream) -> Stop | None:
        """The goodbye of a server that is gone, if it came."""
        with suppress(PeerError, *LOST):
            async with asyncio.timeout(1):
                while True:
                    message = await self._read(stream)
                    if isinstance(message, Stop):
                        return message
        return None

    async def _read(self, stream: Stream) -> Control | Message:
        frame = await stream.read()
        if frame is grpc.aio.EOF:
            raise ConnectionError("the server ended the stream without a goodbye")
        return unpack(self._codec, frame)

    def _build(self, rows: Rows) -> None:
        """This device's part of the run, at its start or at its checkpoint."""
        train, test = self._own_rows(rows.train), self._own_rows(rows.test)
        try:
            self._make(self._config, len(train), self._features.x[train], self._features.x[test], rows.mu_start)
        except ConfigError as error:
            raise PeerError(f"the server's rows do not fit this run ({error}); it is closed.") from None
        LOG.info("this is device %d: %d train records", self._m, len(train))
        if not (self._folder / STATE).exists():
            self._save()  # a start with noise of its own is drawn once

    def _build_to_predict(self) -> None:
        """This device as it was trained, for whatever records its file holds now."""
        state = self._known()
        if not state.D:
            raise PeerError("this device has no trained weights in its folder, so it cannot take part in predictions.")
        few = self._features.x[:64]  # shapes only: the weights are loaded
        starts = per_device("devices.start", self._config.devices.start, len(self._config.network.devices))
        plain = tuple("random" if start_facts(start).reads or start_facts(start).private else start for start in starts)
        change = msgspec.structs.replace
        config = change(self._config, devices=change(self._config.devices, start=plain))
        self._make(config, state.D, few, few[:0])

    def _make(
        self, config: Config, D: int, x_train: NDArray[Any], x_test: NDArray[Any], mu_start: float = math.inf
    ) -> None:
        """The device, with the weights of its checkpoint if there is one; its start may cost `mu_start`."""
        m = self._m
        plan, noise = plan_of(self._config, D, len(config.network.devices)), noise_of(config)
        if not mu_start <= plan.mu_start[m - 1]:  # never less noise than this party would take by itself
            mu_start = plan.mu_start[m - 1]
        if start_facts(plan.starts[m - 1]).private and not mu_start > 0:
            raise PeerError(f"the server leaves {mu_start} to a private start, expected more than 0; it is closed.")
        costs = (*plan.mu_start[: m - 1], mu_start, *plan.mu_start[m:])
        plan = msgspec.structs.replace(plan, mu_start=costs)
        network = make_network(config, m, x_train, plan, noise)
        made = make_device(config, m, network, torch.from_numpy(x_train), torch.from_numpy(x_test), plan, noise)
        self._device, self._codec, self._D = made[0], codec_of(config, m, plan.M), D
        if (self._folder / STATE).exists():
            self._load(self._device)

    def _own_rows(self, data: bytes) -> NDArray[np.int64]:
        """Row numbers of this device's file; anything else closes the server."""
        rows = np.frombuffer(data, np.int64) if len(data) % 8 == 0 else np.array([-1])
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._features.x):
            raise PeerError(f"the server named rows that this device's {len(self._features.x)} are not; it is closed.")
        return rows

    def _known(self) -> _State:
        """How far this device is, by what it holds or by its checkpoint."""
        if self._device is not None:
            return _State(self._run_id, self._device.position, self._D)
        if not (self._folder / STATE).exists():
            return _State("", 0)
        with _readable(self._folder / STATE) as file:
            return msgspec.json.decode(file.metadata()["state"], type=_State)

    def _save(self) -> None:
        assert self._device is not None
        state = _State(self._run_id, self._device.position, self._D)
        write_tensors(self._folder / STATE, _tensors(self._device), {"state": msgspec.json.encode(state).decode()})
        self._saved = time.monotonic()

    @torch.no_grad()
    def _load(self, device: Device) -> None:
        with _readable(self._folder / STATE) as file:
            for name, tensor in _tensors(device).items():
                tensor.copy_(file.get_tensor(name))
            state = msgspec.json.decode(file.metadata()["state"], type=_State)
            device.position, self._run_id = state.position, state.run_id

    def _finish(self, device: Device) -> None:
        path = self._folder / "weights" / f"device-{device.m}.safetensors"
        write_tensors(path, device.method.network.state_dict(), {})


def _tensors(device: Device) -> dict[str, torch.Tensor]:
    tensors = {f"network.{name}": tensor for name, tensor in device.method.network.state_dict().items()}
    return tensors | {f"velocity.{i}": tensor for i, tensor in enumerate(device.method.velocity)}


def _readable(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, "pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise DataError(f"{path} is not the state of a device ({error}); give an empty folder.") from None


def _short(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
