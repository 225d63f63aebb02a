"""Nothing but the releases depends on labels: everything a device receives is recorded under two sets of labels."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from federation import NAMES, Parties, config_of, serving

from dpzv.network.memory_transport import MemoryListener, MemoryStream
from dpzv.network.wire import Control, Receipted, Welcome, unpack
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Message

CODEC = Codec("float32", 1e-3)


class Recording:
    """A connector that keeps every frame that the server sends."""

    def __init__(self, listener: MemoryListener, name: str) -> None:
        self._own = listener.connector(name)
        self.frames: list[bytes] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[MemoryStream]:
        async with self._own.connect() as stream:
            read = stream.read

            async def kept() -> bytes | None:
                frame = await read()
                if frame is not None:
                    self.frames.append(frame)
                return frame

            vars(stream)["read"] = kept
            yield stream


async def heard(parties: Parties, out: Path) -> list[list[object]]:
    """What each device hears in a whole run; releases as their place only, and without the run's random name."""
    config = config_of("head.rule=dp-sgd", "head.steps=20")
    listener = MemoryListener(NAMES)
    connectors = {name: Recording(listener, name) for name in NAMES}
    async with serving(parties.server(config, out / "server"), listener) as finished:
        assert await asyncio.wait_for(parties.finish(config, out, finished, connectors.__getitem__), 90) is not None

    def plain(message: Control | Message | Receipted) -> object:
        if isinstance(message, Receipted):  # and a receipt is a hash of these numbers and of the run's name
            release = message.release
            return ("release", release.t, release.m, release.position, len(release.Delta))
        return msgspec.structs.replace(message, run_id="") if isinstance(message, Welcome) else message

    return [[plain(unpack(CODEC, frame)) for frame in connector.frames] for connector in connectors.values()]


@pytest.mark.parametrize("change", ["shuffled", "flipped"])
def test_what_devices_hear_is_the_same_whatever_the_labels(tmp_path: Path, change: str) -> None:
    parties = Parties.made(tmp_path / "keys")
    first = asyncio.run(heard(parties, tmp_path / "one"))
    y = parties.labels.y
    other = np.random.default_rng(1).permutation(y) if change == "shuffled" else 9 - y
    parties.labels = dataclasses.replace(parties.labels, y=other)
    second = asyncio.run(heard(parties, tmp_path / "two"))
    assert first == second
    assert sum(isinstance(message, tuple) for messages in first for message in messages) == 40
