"""A device that speaks the protocol with zeros for embeddings, and can be told to misbehave when it is evaluated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from federation import NAMES, Parties, hello

from dpzv.config import Config
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.transport import LinkLost, Stream, next_frame
from dpzv.network.wire import MESSAGE, Ask, Done, ListPiece, Receipted, Rows, Stop, Welcome, pack, unpack
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Fill

CODEC = Codec("float32", 1e-3)
WIDTH = 8


class Puppet:
    """Device `m` of `parties`. `evaluate` gives the frames it answers to the n-th request for its test rows."""

    def __init__(
        self, parties: Parties, config: Config, m: int, evaluate: Callable[[Puppet, int], list[bytes]] | None = None
    ) -> None:
        self.m, self.config, self._evaluate = m, config, evaluate or (lambda puppet, _: puppet.test_rows())
        features = parties.features[m - 1]
        self.hello, self.ids = hello(config, "", 0, features.hashes.tobytes()), features.hashes.tobytes()
        self.D_test = self.D = self.evaluations = 0
        self.gap = 0.0  # seconds before each frame of an answer to a request
        self.stops: list[Stop] = []

    def part(self, start: int, stop: int, value: float = 0.0) -> bytes:
        """Test rows from `start` to `stop`."""
        return CODEC.encode(Evaluation(self.m, start, np.full((stop - start, WIDTH), value, np.float32)), MESSAGE)

    def test_rows(self, value: float = 0.0) -> list[bytes]:
        """All test rows, as an honest device sends them."""
        return [self.part(0, self.D_test, value), pack(Done("evaluate"))]

    async def run(self, listener: MemoryListener) -> None:
        """Take part, and come back whenever the server closes the link, until it says that it is the end."""
        while not (self.stops and (self.stops[-1].final or listener.talk is None)):
            with suppress(LinkLost):
                async with listener.connector(NAMES[self.m - 1]).connect() as stream:
                    await self._talk(stream)
            await asyncio.sleep(0.02)

    async def _talk(self, stream: Stream) -> None:
        position, begun = 0, False
        await stream.write(pack(self.hello))
        while True:
            message = unpack(CODEC, await next_frame(stream, 60))
            frames: list[bytes] = []
            if isinstance(message, Stop):
                self.stops.append(message)
                await stream.write(pack(Stop("goodbye", message.final)))
                return
            if isinstance(message, Welcome) and message.needs_ids:
                frames = [pack(ListPiece(0, self.ids))]
            elif isinstance(message, Rows):
                self.D, self.D_test = message.train, message.test
            elif isinstance(message, Receipted):
                position += 1
                frames = [self._batch(position)] if begun else []
            elif isinstance(message, Ask):
                begun = begun or message.what == "rounds"
                frames = self._asked(message.what, position)
            for frame in frames:
                await asyncio.sleep(self.gap if isinstance(message, Ask) else 0)
                await stream.write(frame)

    def _asked(self, what: str, position: int) -> list[bytes]:
        if what == "rounds":
            return [self._batch(position)]
        if what == "fill":
            return [CODEC.encode(Fill(self.m, 0, np.zeros((self.D, WIDTH), np.float32)), MESSAGE), pack(Done("fill"))]
        self.evaluations += 1
        return self._evaluate(self, self.evaluations)

    def _batch(self, position: int) -> bytes:
        h = np.zeros((self.config.train.B, WIDTH), np.float32)
        return CODEC.encode(Embeddings(self.m, position, (h, h)), MESSAGE)
