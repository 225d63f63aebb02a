"""Frames that no party would send: every one is taken or refused with a reason, at once, and a refused one changes
nothing."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from federation import NAMES, Parties, config_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpzv.errors import PeerError
from dpzv.network.credentials import channel_credentials, server_credentials
from dpzv.network.guest import Guest
from dpzv.network.host import Host
from dpzv.network.keyfiles import issue_party
from dpzv.network.link import LOST, open_stream
from dpzv.network.peers import Peer
from dpzv.network.session import Session
from dpzv.network.wire import Ask, Control, Done, Hello, Ids, Rows, Stop, Welcome, hello, pack, pack_message, unpack
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release

B, K, T = 64, 2, 1_000_000
SMALL = (f"train.B={B}", f"devices.embedding={K}", f"train.rounds={T}", "head.rule=frozen", "network.order=arrival")
CODECS = (Codec("float32", 1e-3), Codec("float16", 1e-3), Codec("float32", 1e-3, per_record=True))
SLOWEST = 2.0
"""Seconds that one frame may take at most, on a busy machine; the mean is far below a thousandth."""
GROWTH = 24 << 20
"""Bytes that the process may grow by after its first frames: less than a frame kept in a thousand."""


class Ended(Exception):
    """A scripted stream has nothing more to say."""


class Scripted:
    """A stream that gives its frames and then no more."""

    def __init__(self, *frames: bytes) -> None:
        self._frames = list(frames)

    async def read(self) -> bytes:
        if not self._frames:
            raise Ended
        return self._frames.pop(0)

    async def write(self, frame: bytes) -> None:
        pass


def rows_of(n: int, draw: int) -> torch.Tensor:
    return torch.randn(n, K, generator=torch.Generator().manual_seed(draw))


CONTROLS: tuple[Control, ...] = (
    Hello("0.1.0", 1, "0" * 64, "", 3, "1" * 64),
    Welcome(1, "2" * 32, "train", True),
    Ids(bytes(range(48))),
    Rows(np.arange(80).tobytes(), np.arange(80, 90).tobytes()),
    Ask("rounds"),
    Ask("fill"),
    Ask("evaluate"),
    Ask("predict", np.arange(5).tobytes()),
    Done("fill"),
    Done("evaluate"),
    Stop("enough", False),
)
"""One of every kind; the machines' own numbers come with `Machines.valid`."""

# the values that a peer can put where another was expected
_INTEGERS = (-(2**63), -1, 0, 1, 2, 5, B, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, -0.0, 1.5)
_OTHERS: tuple[Any, ...] = (None, True, "", "x" * 300, "\n\x1b[2J", b"", bytes(7), bytes(8 * B), [], {}, {"a": [1]})
_SHAPES = (
    [0, 0],
    [0, 2**62],
    [0, 2**64 - 1],
    [B, K],
    [K, B],
    [-B, -K],
    [1, K],
    [B * K, 1],
    [2**40, 2**40],
    [1],
    [1, 1, 1],
)
_TUPLES: tuple[list[bytes], ...] = (
    [],
    [b""],
    [b"", b""],
    [bytes(4 * B * K)],
    [bytes(4 * B * K)] * 3,
    [b"\xff" * 4 * B * K] * 2,
)
_LENGTHS = (b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9")  # bytes, text, array, map, extension, with 32 bits of length


def _another_value(body: bytes, draw: random.Random) -> bytes:
    """The same message with a field replaced, dropped, doubled or added."""
    fields = msgspec.msgpack.decode(body)
    if not isinstance(fields, list) or not fields:
        return body
    at = draw.randrange(len(fields))
    what = draw.randrange(10)
    if what < 7:
        pool: tuple[Any, ...] = draw.choice((_INTEGERS, _INTEGERS, _FLOATS, _OTHERS, _SHAPES, _TUPLES))
        fields[at] = draw.choice(pool)
    elif what == 7:
        del fields[at]
    else:
        fields.insert(at, fields[at] if what == 8 else draw.choice(_OTHERS))
    return msgspec.msgpack.encode(fields)


def _other_bytes(frame: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """The same bytes with some flipped, cut, doubled, or joined with those of another frame."""
    near = min(len(frame), 40) if draw.random() < 0.7 else len(frame)  # most of a long frame is numbers: any will do
    at = draw.randrange(near + 1)
    what = draw.randrange(8)
    if what == 0:
        return frame[:at]
    if what == 1:
        return frame + frame[at:]
    if what == 2:
        other = draw.choice(others)
        return frame[:at] + other[draw.randrange(len(other) + 1) :]
    if what == 3:
        size = draw.choice((2**16, 2**28, 2**31, 2**32 - 1))
        return frame[:at] + draw.choice(_LENGTHS) + size.to_bytes(4, "big") + frame[at:]
    if what == 4:
        nested = bytes([draw.choice((0x91, 0x81, 0x92))]) * draw.choice((3, 100, 5000))
        return frame[:at] + nested + frame[at:]
    if what == 5:
        return frame[:at] + frame[at + draw.randrange(1, 9) :]
    if what == 6:
        return frame[:at] + bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9))) + frame[at:]
    changed = bytearray(frame or b"c")
    for _ in range(draw.randrange(1, 9)):
        changed[draw.randrange(min(near, len(changed)) or 1)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def mutated(frame: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """A frame made from `frame` by one to three changes."""
    frame = frame[:1] + _another_value(frame[1:], draw) if draw.random() < 0.5 else _other_bytes(frame, others, draw)
    while draw.random() < 0.3:
        frame = _other_bytes(frame, others, draw)
    return frame


def decode_everywhere(frame: bytes) -> None:
    """All decoders; a `PeerError` is an answer, anything else is not."""
    for codec in (None, *CODECS):
        try:
            unpack(codec, frame)
        except PeerError:
            pass
        if codec is not None:
            try:
                codec.decode(frame[1:])
            except PeerError:
                pass


class Machines:
    """A server behind its dispatch and a device behind its own, both in the middle of a run, without a network."""

    def __init__(self, parties: Parties, out: Path, stack: ExitStack) -> None:
        config = config_of(*SMALL)
        self.m = 2
        self.host: Host = parties.host(config, out / "server")
        for m, features in enumerate(parties.features, 1):
            self.host._meeting.take(m, features.hashes.tobytes())
        self.session = Session(config, parties.labels, self.host._meeting, self.host._folder, self.host._peers, stack)
        self.host._session = self.session
        self.guest: Guest = parties.guest(config, self.m, out / "device")
        self.refused = self.taken = 0

    async def start(self) -> None:
        """The device learns its rows."""
        for message in (Welcome(self.m, self.session.ledger.run_id, "train", False), self.host._meeting.rows(self.m)):
            await self.guest._answer(Scripted(), message, b"")

    def valid(self) -> list[bytes]:
        """What would be right to send now, both ways."""
        codec, position = self.session.codecs[self.m - 1], self.session.server.positions[self.m - 1]
        device = self.guest._device
        assert device is not None
        messages = (
            Embeddings(self.m, position, (rows_of(B, 0), rows_of(B, 1))),
            Embeddings(self.m, position, (rows_of(B, 2), rows_of(B, 3))),
            Fill(self.m, 8, rows_of(20, 2)),
            Evaluation(self.m, 4, rows_of(20, 3)),
            Release(self.session.server.t + 1, self.m, device.position, np.array([0.25])),
            Release(self.session.server.t + 1, self.m, device.position, np.array([-1.5])),
        )
        return [*(pack_message(codec, message) for message in messages), *map(pack, CONTROLS)]

    def server_state(self) -> bytes:
        """Everything at the server that a device's frame could change."""
        session, server, rounds = self.session, self.session.server, self.session.rounds
        digest = hashlib.sha256(server.table.h.numpy().tobytes())
        digest.update(server.table.times.numpy().tobytes())
        seen = [server.t, server.positions, server.times, float(server.delay_sum), server.delay_count, session.begun]
        seen += [session.ledger.releases, session.ledger.last_t, session.ledger.unit_mu_squared, session.book.meter]
        seen += [sorted(rounds._waiting), sorted(session.filled), {m: len(c) for m, c in rounds._incoming.items()}]
        digest.update(repr(seen).encode())
        return digest.digest()

    def device_state(self) -> bytes:
        """Everything at the device that decides what it does in later rounds."""
        device = self.guest._device
        assert device is not None
        digest = hashlib.sha256(repr((device.position, self.guest._m, self.guest._run_id)).encode())
        for tensor in (*device.rule.network.state_dict().values(), *device.rule.velocity):
            digest.update(tensor.numpy().tobytes())
        return digest.digest()

    async def server_takes(self, frame: bytes, *, begun: bool, asked: bool) -> None:
        """One frame of the device through the server's dispatch and, if it is a batch, through its round."""
        session, rounds = self.session, self.session.rounds
        session.begun = begun
        rounds._incoming = {self.m: []} if asked else {}
        before, stream = self.server_state(), Scripted(frame)
        peer = Peer(self.m, stream)
        try:
            await self.host._listen_to(peer, stream)
        except PeerError as error:
            assert str(error)
            assert self.server_state() == before, frame[:80]
            self.refused += 1
            return
        except Ended:
            pass
        self.taken += 1
        batch = rounds._waiting.pop(self.m, None)
        if batch is not None:
            await rounds._round(batch)
            assert not peer.closed.is_set()
            assert session.server.positions[self.m - 1] > batch.message.position

    async def device_takes(self, frame: bytes) -> None:
        """One frame of the server through the device's dispatch."""
        guest, device = self.guest, self.guest._device
        assert device is not None
        before = self.device_state()
        try:
            message = unpack(guest._codec, frame)
            if not isinstance(message, Stop):
                await guest._answer(Scripted(), message, bytes(32))
                self.taken += 1
        except PeerError as error:
            assert str(error)
            assert self.device_state() == before, frame[:80]
            self.refused += 1
        guest._m, guest._run_id = self.m, self.session.ledger.run_id
        device.waiting = not device.waiting

    async def throw(self, frame: bytes, draw: random.Random) -> None:
        """A frame at everything that takes frames."""
        decode_everywhere(frame)
        await self.server_takes(frame, begun=draw.random() < 0.7, asked=draw.random() < 0.5)
        await self.device_takes(frame)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


@pytest.fixture(scope="module")
def machines(parties: Parties, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        made = Machines(parties, tmp_path_factory.mktemp("machines"), stack)
        asyncio.run(made.start())
        yield made


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def storm(machines: Machines, n: int, seed: int) -> None:
    """n mutated frames; refuses slow ones and growth."""
    draw, slowest, held = random.Random(seed), 0.0, 0
    machines.refused = machines.taken = 0
    for i in range(n):
        valid = machines.valid()
        frame = mutated(draw.choice(valid), valid, draw)
        began = time.perf_counter()
        await machines.throw(frame, draw)
        slowest = max(slowest, time.perf_counter() - began)
        if i == n // 5:
            machines.session.ledger.flush()
            held = resident()
    machines.session.ledger.flush()
    assert slowest < SLOWEST
    assert resident() - held < GROWTH
    # mutations that nothing notices, or that nothing accepts, would test nothing
    assert machines.refused > n / 2
    assert machines.taken > n / 20


def test_valid_frames_are_taken(machines: Machines) -> None:
    """The frames that are mutated below are right before they are."""
    valid = machines.valid()
    before = machines.session.server.t, machines.session.server.positions[machines.m - 1]

    async def take() -> None:
        await machines.server_takes(valid[0], begun=True, asked=False)
        await machines.server_takes(valid[2], begun=False, asked=False)
        await machines.server_takes(valid[3], begun=True, asked=True)

    machines.refused = 0
    asyncio.run(take())
    assert machines.refused <= 1  # a fill after the first round is
    after = machines.session.server.t, machines.session.server.positions[machines.m - 1]
    assert after == (before[0] + 1, before[1] + 1)


def test_mutated_frames_are_taken_or_refused(machines: Machines) -> None:
    asyncio.run(storm(machines, 2500, 0))


@pytest.mark.soak
def test_a_hundred_thousand_mutated_frames(machines: Machines) -> None:
    asyncio.run(storm(machines, 100_000, 1))


def check_one(machines: Machines, draw: random.Random) -> None:
    valid = machines.valid()
    asyncio.run(machines.throw(mutated(draw.choice(valid), valid, draw), draw))


RELAXED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@settings(max_examples=400, deadline=None, suppress_health_check=RELAXED)
@given(draw=st.randoms(use_true_random=False))
def test_searched_frames_are_taken_or_refused(machines: Machines, draw: random.Random) -> None:
    check_one(machines, draw)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None, suppress_health_check=RELAXED)
@given(draw=st.randoms(use_true_random=False))
def test_many_searched_frames_are_taken_or_refused(machines: Machines, draw: random.Random) -> None:
    check_one(machines, draw)


@settings(max_examples=500, deadline=None)
@given(frame=st.binary(max_size=200))
def test_noise_is_refused_by_every_decoder(frame: bytes) -> None:
    decode_everywhere(frame)
    decode_everywhere(b"c" + frame)
    decode_everywhere(b"m" + frame)
