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
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from federation import NAMES, Parties, config_of, hello, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzv.config import Config
from dpzv.errors import PeerError
from dpzv.network.alignment_state import digest_of
from dpzv.network.arrivals import Arrivals
from dpzv.network.beginning import open_run
from dpzv.network.device_conversation import Conversation
from dpzv.network.evaluations import _Coming
from dpzv.network.memory_transport import MemoryListener, MemoryStream
from dpzv.network.server_party import ServerParty
from dpzv.network.transport import LinkLost, Peer, next_frame
from dpzv.network.wire import (
    MESSAGE,
    Ask,
    Control,
    Done,
    Hello,
    ListPiece,
    Rows,
    Stop,
    Welcome,
    pack,
    pack_release,
    unpack,
)
from dpzv.privacy.ledger_checks import RECEIPT_BYTES
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release

B, K, T = 64, 2, 1_000_000
SMALL = (f"train.B={B}", f"devices.embedding={K}", f"train.rounds={T}", "head.rule=frozen", "network.order=arrival")
CODECS = (Codec("float32", 1e-3), Codec("float16", 1e-3), Codec("float32", 1e-3, per_record=True))
SLOWEST = 2.0
"""Seconds that one frame may take at most, on a busy machine; the mean is far below a thousandth."""
GROWTH = 24 << 20
"""Bytes that the process may grow by after its first frames: less than a frame kept in a thousand."""


async def spoken(*frames: bytes, name: str = "east") -> tuple[MemoryStream, MemoryStream]:
    """Device `name`'s end and the server's end of a stream on which the device has said `frames` and closed."""
    here = MemoryStream("server")
    there = MemoryStream(name, here)
    for frame in frames:
        await here.write(frame)
    await here.close()
    return here, there


async def reason(here: MemoryStream, there: MemoryStream) -> str:
    """Why the server closed the stream; empty if it did not."""
    there.hang_up()
    last = None
    while (frame := await here.read()) is not None:
        last = unpack(CODECS[0], frame)
    return last.reason if isinstance(last, Stop) else ""


def rows_of(n: int, draw: int) -> NDArray[np.float32]:
    return np.random.default_rng(draw).standard_normal((n, K), dtype=np.float32)


CONTROLS: tuple[Control, ...] = (
    Hello("0.1.0", 1, "0" * 64, "", 3, 7, bytes(16), 3, "1" * 64),
    Welcome(1, "2" * 32, "train", True),
    ListPiece(0, np.arange(5).tobytes()),
    Rows(3, 2),
    Ask("rounds"),
    Ask("fill"),
    Ask("evaluate"),
    Ask("predict", 5),
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

# float32 infinity, quiet and signalling NaN, the largest and smallest numbers; then a float64 one by its upper half
_NUMBERS = (b"\0\0\x80\x7f", b"\0\0\xc0\x7f", b"\1\0\xa0\x7f", b"\xff\xff\x7f\x7f", b"\1\0\0\0", b"\0\0\xf0\x7f")


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


def _another_shape(body: bytes, draw: random.Random) -> bytes:
    """The same message with another shape, and arrays that have just the bytes for it."""
    fields = msgspec.msgpack.decode(body)
    if len(fields) != 5 or not isinstance(fields[3], list):
        return body
    n, k = draw.choice(((0, 0), (0, 2**62), (2**64 - 1, 0), (0, K), (B, 0), (1, K), (B - 1, K), (B, K + 1), (K, B)))
    array = bytes(4 * n * k)
    fields[3] = [n, k]
    fields[4] = [array] * draw.randrange(4) if isinstance(fields[4], list) else array
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


def _other_numbers(frame: bytes, draw: random.Random) -> bytes:
    """The same frame with numbers of an array that are not finite, or any."""
    changed = bytearray(frame)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(frame) + 1)
        changed[at : at + 4] = draw.choice(_NUMBERS)[: len(changed) - at]
    return bytes(changed)


def mutated(frame: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """A frame made from `frame` by changes; one in twenty has none, so that the machines move on."""
    what, body = draw.randrange(20), 17 if frame[:1] == b"r" else 1  # a release comes after its receipt
    if what == 0:
        return frame
    if what < 4:
        frame = _other_numbers(frame, draw)
    elif what < 7:
        frame = frame[:body] + _another_shape(frame[body:], draw)
    elif what < 13:
        frame = frame[:body] + _another_value(frame[body:], draw)
    else:
        frame = _other_bytes(frame, others, draw)
    while draw.random() < 0.25:
        frame = _other_bytes(frame, others, draw)
    return frame


def decode_everywhere(frame: bytes) -> None:
    """All decoders; a `PeerError` is an answer, anything else is not."""
    for codec in (None, *CODECS):
        with suppress(PeerError):
            unpack(codec, frame)
        if codec is not None:
            with suppress(PeerError):
                codec.decode(frame[1:])


class Machines:
    """A server behind its dispatch and a device behind its own, both in the middle of a run, without a network."""

    def __init__(self, parties: Parties, out: Path, stack: ExitStack) -> None:
        config = config_of(*SMALL)
        self.m = 2
        self.server: ServerParty = parties.server(config, out / "server")
        for m, features in enumerate(parties.features, 1):
            self.server._alignment.take(m, features.hashes, digest_of(m, features.hashes))
        self.server._alignment.settle()
        self.run = stack.enter_context(open_run(config, self.server._alignment, self.server._folder))
        self.arrivals = Arrivals(self.run, self.server._peers)
        self.server._run, self.server._arrivals = self.run, self.arrivals
        self.talk: Conversation = parties.device(config, self.m, out / "device").conversation
        self.first_ids = parties.features[self.m - 1].hashes.tobytes()
        self.config = config
        self.refused = 0

    def start(self) -> None:
        """The device learns its rows."""
        rows, numbers = self.server._alignment.rows(self.m)
        welcome = Welcome(self.m, self.run.ledger.run_id, "train", False)
        for message in (welcome, rows, ListPiece(0, numbers.tobytes())):
            assert list(self.talk.answers(message)) == []

    def valid(self) -> list[bytes]:
        """What would be right to send now, both ways."""
        codec, position = self.run.codecs[self.m - 1], self.run.server.positions[self.m - 1]
        device = self.talk.device
        assert device is not None
        messages = (
            Embeddings(self.m, position, (rows_of(B, 0), rows_of(B, 1))),
            Embeddings(self.m, position, (rows_of(B, 2), rows_of(B, 3))),
            Fill(self.m, 8, rows_of(20, 2)),
            Evaluation(self.m, 0, rows_of(20, 3)),
        )
        releases = [Release(self.run.server.t + 1, self.m, device.position, np.array([x])) for x in (0.25, -1.5)]
        answers = [pack_release(codec, release, bytes(RECEIPT_BYTES)) for release in releases]
        return [*(codec.encode(message, MESSAGE) for message in messages), *answers, *map(pack, CONTROLS)]

    def progress(self) -> tuple[int, int]:
        """Rounds at the server, and releases that the device has applied."""
        assert self.talk.device is not None
        return self.run.server.t, self.talk.device.position

    def server_state(self) -> bytes:
        """Everything at the server that a device's frame could change."""
        run, server, arrivals = self.run, self.run.server, self.arrivals
        digest = hashlib.sha256(server.table.h.numpy().tobytes())
        digest.update(server.table.times.tobytes())
        seen = [server.t, server.positions, server.times, server.delays, run.begun]
        seen += [run.ledger.releases, run.ledger.last_t, run.ledger.unit_mu_squared]
        # a device may be sent releases again, and be closed after that
        seen += [msgspec.structs.replace(run.journal.meter, bytes_down=0, payload_bytes=0)]
        coming = [one.rows for one in arrivals.evaluations._coming.values()]
        seen += [sorted(arrivals._waiting), sorted(run._filled), coming]
        digest.update(repr(seen).encode())
        return digest.digest()

    def device_state(self) -> bytes:
        """Everything at the device that decides what it does in later rounds."""
        device = self.talk.device
        assert device is not None
        digest = hashlib.sha256(repr((device.position, self.talk.m, self.talk.run_id)).encode())
        for tensor in (*device.method.network.state_dict().values(), *device.method.velocity):
            digest.update(tensor.numpy().tobytes())
        return digest.digest()

    async def server_takes(self, frame: bytes, *, begun: bool, asked: bool) -> None:
        """One frame of the device through the server's dispatch and, if it is a batch, through its round."""
        run, arrivals = self.run, self.arrivals
        run.begun = begun
        _, there = await spoken(frame)
        peer = Peer(self.m, there)
        arrivals.evaluations._coming = {peer: _Coming()} if asked else {}
        before = self.server_state()
        try:
            await self.server._listen_to(peer, there)
        except PeerError:
            assert self.server_state() == before, frame[:80]
            self.refused += 1
            return
        except LinkLost:  # the stream has ended, so the frame before was taken
            pass
        batch = arrivals._waiting.pop(self.m, None)
        if batch is not None:
            run.close(run.begin(batch.message, batch.frame))
            assert not peer.closed.is_set()
            assert run.server.positions[self.m - 1] > batch.message.position

    def device_takes(self, frame: bytes) -> None:
        """One frame of the server through the device's dispatch."""
        talk, device = self.talk, self.talk.device
        assert device is not None
        before = self.device_state()
        try:
            message = unpack(talk.codec, frame)
            if not isinstance(message, Stop):
                list(talk.answers(message))
        except PeerError:
            assert self.device_state() == before, frame[:80]
            self.refused += 1
            talk._announced = None  # the next frame comes over a new link
        talk.m, talk.run_id = self.m, self.run.ledger.run_id
        device.waiting = not device.waiting

    async def throw(self, frame: bytes, draw: random.Random) -> None:
        """A frame at everything that takes frames."""
        decode_everywhere(frame)
        await self.server_takes(frame, begun=draw.random() < 0.7, asked=draw.random() < 0.5)
        self.device_takes(frame)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


@pytest.fixture(scope="module")
def machines(parties: Parties, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        made = Machines(parties, tmp_path_factory.mktemp("machines"), stack)
        made.start()
        yield made


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def storm(machines: Machines, n: int, seed: int) -> None:
    """n mutated frames; refuses slow ones and growth."""
    draw, slowest, held = random.Random(seed), 0.0, 0
    machines.refused, before = 0, machines.progress()
    for i in range(n):
        valid = machines.valid()
        frame = mutated(draw.choice(valid), valid, draw)
        began = time.perf_counter()
        await machines.throw(frame, draw)
        slowest = max(slowest, time.perf_counter() - began)
        if i == n // 5:
            machines.run.ledger.flush()
            held = resident()
    machines.run.ledger.flush()
    assert slowest < SLOWEST
    assert resident() - held < GROWTH
    # mutations that nothing notices, or after which nothing works any more, would test nothing
    assert machines.refused > n
    assert all(now - then > n / 100 for then, now in zip(before, machines.progress(), strict=True))


def test_valid_frames_are_taken(machines: Machines) -> None:
    """The frames that are mutated below are right before they are."""
    valid = machines.valid()
    before = machines.run.server.t, machines.run.server.positions[machines.m - 1]

    async def take() -> None:
        await machines.server_takes(valid[0], begun=True, asked=False)
        await machines.server_takes(valid[2], begun=False, asked=False)
        await machines.server_takes(valid[3], begun=True, asked=True)

    machines.refused = 0
    asyncio.run(take())
    assert machines.refused <= 1  # a fill after the first round is
    after = machines.run.server.t, machines.run.server.positions[machines.m - 1]
    assert after == (before[0] + 1, before[1] + 1)


def test_mutated_frames_are_taken_or_refused(machines: Machines) -> None:
    asyncio.run(storm(machines, 5000, 0))


@pytest.mark.soak
def test_a_hundred_thousand_mutated_frames(machines: Machines) -> None:
    asyncio.run(storm(machines, 100_000, 1))


def check_one(machines: Machines, draw: random.Random) -> None:
    valid = machines.valid()
    asyncio.run(machines.throw(mutated(draw.choice(valid), valid, draw), draw))


RELAXED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@settings(max_examples=400, deadline=None, suppress_health_check=RELAXED)
@given(seed=st.integers(0, 2**63))
def test_searched_frames_are_taken_or_refused(machines: Machines, seed: int) -> None:
    # what is drawn depends on where the machines are by then, which no other kind of data may
    check_one(machines, random.Random(seed))


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None, suppress_health_check=RELAXED)
@given(seed=st.integers(0, 2**63))
def test_many_searched_frames_are_taken_or_refused(machines: Machines, seed: int) -> None:
    # what is drawn depends on where the machines are by then, which no other kind of data may
    check_one(machines, random.Random(seed))


async def greeted(machines: Machines, draw: random.Random) -> None:
    """A connection from its hello on: it is closed with a reason, or it ends because nothing more comes."""
    machines.run.begun = True
    machines.server._aligned.set()
    first = pack(hello(machines.config, "", 0, machines.first_ids))
    stranger = draw.random() < 0.05
    frames = [mutated(first, machines.valid(), draw), mutated(machines.valid()[0], machines.valid(), draw)]
    here, there = await spoken(*frames, name="nobody" if stranger else NAMES[machines.m - 1])
    before = machines.server_state()
    await machines.server._talk(there)
    machines.arrivals._waiting.clear()
    why = await reason(here, there)
    if stranger:
        assert "not a device" in why
    if why:
        assert machines.server_state() == before
    assert not machines.server._peers.present()


async def introduced(server: ServerParty, frames: list[bytes]) -> str:
    """Hashed ids to a server that still waits for them: the reason why they were refused, or nothing."""
    here, there = await spoken(*frames)
    with suppress(TimeoutError):
        await asyncio.wait_for(server._talk(there), 0.02)
    return await reason(here, there)


def greet_many(machines: Machines, n: int, seed: int) -> None:
    draw = random.Random(seed)

    async def all_of_them() -> None:
        for _ in range(n):
            await greeted(machines, draw)

    asyncio.run(all_of_them())


def test_a_mutated_hello_is_taken_or_refused_with_a_reason(machines: Machines) -> None:
    greet_many(machines, 400, 2)


@pytest.mark.soak
def test_many_mutated_hellos_are_taken_or_refused_with_a_reason(machines: Machines) -> None:
    greet_many(machines, 20_000, 3)


def test_mutated_ids_are_taken_or_refused_with_a_reason(parties: Parties, tmp_path: Path) -> None:
    config, draw = config_of(*SMALL), random.Random(4)
    hashes = parties.features[1].hashes.tobytes()
    said = msgspec.structs.replace(hello(config, "", 0, b""), ids=40)  # whose ids are never those that are here
    first, ids = pack(said), pack(ListPiece(0, hashes[: 16 * 40]))

    async def all_of_them() -> list[str]:
        server = parties.server(config, tmp_path)
        return [await introduced(server, [first, mutated(ids, [first, ids], draw)]) for _ in range(200)]

    reasons = asyncio.run(all_of_them())
    assert sum(map(bool, reasons)) > 100
    assert not all(reasons)


def test_mutated_rows_are_taken_or_refused_by_a_new_device(parties: Parties, tmp_path: Path) -> None:
    config, draw = config_of(*SMALL), random.Random(5)
    n = len(parties.features[0].x)
    right = np.random.default_rng(0).permutation(n)
    wrong = (right[:B] + n, right[:B] - n, right[: B - 1], np.zeros(B, np.int64), np.full(B, 2**62), right[:0])
    lists = [(train, right[-9:]) for train in (right[: 4 * B], *wrong)]
    lists += [(right[:B], test) for test in (right[:0], right[:9] + n, right[:9] - n)]
    frames = [[pack(Rows(*map(len, both))), pack(ListPiece(0, np.concatenate(both).tobytes()))] for both in lists]
    frames += [[pack(Rows(B, 9)), pack(ListPiece(0, right[: B + 9].tobytes()[:-3]))], [pack(Rows(B, n))]]
    refused = 0

    def told(frames: list[bytes]) -> None:
        talk = parties.device(config, 1, tmp_path / "device").conversation
        assert list(talk.answers(Welcome(1, "0" * 32, "train", False))) == []
        for message in (unpack(None, frame) for frame in frames):
            if not isinstance(message, Stop):
                list(talk.answers(message))

    def spoiled() -> list[bytes]:
        at, both = draw.randrange(2), list(frames[0])
        both[at] = mutated(both[at], both, draw)
        return both

    for both in (*frames, *(spoiled() for _ in range(100))):
        (tmp_path / "device" / "state.safetensors").unlink(missing_ok=True)
        try:
            told(both)
        except PeerError:
            refused += 1
    assert refused >= len(frames) - 2


def test_a_declared_length_takes_no_memory() -> None:
    """A few bytes that announce gigabytes."""
    frames = []
    for first in (b"c", b"m"):
        for length in _LENGTHS:
            for head in (
                b"",
                b"\x93\xa5piece\0",
                b"\x93\xa4rows",
                b"\x95\xa1e\1\0\x92\x40\2",
                b"\x95\xa1f\1\0\x92\x40\2",
            ):
                frames += [first + head + length + size.to_bytes(4, "big") + bytes(9) for size in (2**28, 2**32 - 1)]
    decode_everywhere(frames[0])
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        for frame in frames:
            for codec in (None, *CODECS):
                with pytest.raises(PeerError):
                    unpack(codec, frame)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 16 << 10  # KiB


@settings(max_examples=500, deadline=None)
@given(frame=st.binary(max_size=200))
def test_noise_is_refused_by_every_decoder(frame: bytes) -> None:
    decode_everywhere(frame)
    decode_everywhere(b"c" + frame)
    decode_everywhere(b"m" + frame)


async def intrudes(listener: MemoryListener, name: str, *frames: bytes) -> str:
    """Say what one likes under a name that is let in, then read until the goodbye; its reason, empty without one."""
    async with listener.connector(name).connect() as stream:
        with suppress(LinkLost, PeerError):
            for frame in frames:
                await stream.write(frame)
            while True:
                message = unpack(CODECS[0], await next_frame(stream, 20))
                if isinstance(message, Stop):
                    return message.reason
    return ""


async def disturbed(parties: Parties, config: Config, out: Path) -> list[str]:
    """A run with garbage before it and in its middle; the reasons that the intruders were given."""
    server, draw, reasons = parties.server(config, out / "server"), random.Random(6), []
    listener = MemoryListener((*NAMES, "visitor"))
    west = parties.features[3].hashes.tobytes()
    right = [pack(hello(config, "", 0, west)), pack(ListPiece(0, west))]
    garbage = [b"", b"\xff" * 1000, draw.randbytes(70_000), b"m" + draw.randbytes(50), pack(Stop("", True))[:-1]]
    async with serving(server, listener) as finished:
        for frame in garbage:
            reasons.append(await intrudes(listener, "west", frame))
            reasons.append(await intrudes(listener, "west", right[0], frame))
            reasons.append(await intrudes(listener, "visitor", frame))
        running = asyncio.create_task(parties.finish(config, out, finished, listener.connector))
        for at in (3, 20):
            while server.status().round < at and not finished.done():
                await asyncio.sleep(0.001)
            reasons.append(await intrudes(listener, "west", right[0], draw.choice(garbage[:4])))
            reasons.append(await intrudes(listener, "east", draw.choice(garbage[:4])))
        assert await asyncio.wait_for(running, 90) is not None
    return reasons


def test_garbage_closes_its_sender_and_nobody_else(parties: Parties, tmp_path: Path) -> None:
    """Under the name of a device, and under one that the transport lets in but that is no device's."""
    config = config_of("head.rule=frozen")
    asyncio.run(asyncio.wait_for(parties.together(config, tmp_path / "quiet"), 100))
    reasons = asyncio.run(asyncio.wait_for(disturbed(parties, config, tmp_path / "loud"), 100))
    assert all(reasons), reasons
    lines = [(tmp_path / name / "server" / "transcript.jsonl").read_text() for name in ("quiet", "loud")]
    assert lines[0].count("\n") == 40
    assert lines[0] == lines[1]
