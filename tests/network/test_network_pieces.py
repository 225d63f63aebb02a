"""Long lists cross the network in pieces (ids, row numbers, what is to be predicted), and nothing else waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import NAMES, Parties, config_of, hello, serving

from dpzv import config as configuration
from dpzv.data.alignment import aligned
from dpzv.errors import PeerError
from dpzv.network import wire
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.predict import Predictor
from dpzv.network.server_party import ServerParty
from dpzv.network.transport import next_frame
from dpzv.network.wire import (
    MOST_IDS,
    PART,
    PIECE,
    Ask,
    Gathered,
    ListPiece,
    Rows,
    Stop,
    Welcome,
    pack,
    pieces,
    unpack,
)
from dpzv.runtime.run_folder import RunFolder

CONFIG = config_of("head.rule=frozen", "train.rounds=8")
SMALL = 1000
"""Bytes of a piece in tests of many pieces, so that the last one is shorter."""


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


def test_a_piece_is_one_message_of_the_transport() -> None:
    longest = pack(ListPiece(MOST_IDS * 16, bytes(PIECE)))
    assert len(longest) <= PART
    assert PIECE % 16 == 0
    with pytest.raises(PeerError, match=f"at most {PART} bytes"):
        unpack(None, pack(ListPiece(0, bytes(PART))))


@pytest.mark.parametrize("count", [0, 1, 7, 125, 126, 251])
def test_a_list_is_the_same_after_its_journey(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", SMALL)
    sent, came = np.arange(count, dtype="<i8"), Gathered("numbers", count, 8)
    for frame in pieces(sent):
        assert not came.complete
        piece = unpack(None, frame)
        assert isinstance(piece, ListPiece)
        came.take(piece)
    assert came.complete
    assert (came.entries(np.dtype("<i8")) == sent).all()


@pytest.mark.parametrize(
    "piece",
    [(0, 300), (1000, 1000), (0, 999), (0, 1001), (0, 0), (0, 2400)],
    ids=["the last", "the second", "short", "long", "empty", "all"],
)
def test_another_piece_than_the_next_is_refused(piece: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", SMALL)
    start, length = piece
    with pytest.raises(PeerError, match="the next has 1000 bytes and follows 0 bytes"):
        Gathered("numbers", 300, 8).take(ListPiece(start, bytes(length)))


def test_a_run_and_predictions_do_not_depend_on_the_length_of_pieces(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, Any]] = []
    for name in ("whole", "pieces"):
        out = tmp_path / name
        assert asyncio.run(asyncio.wait_for(parties.together(CONFIG, out), 60)) is not None
        predicted = asyncio.run(parties.predicted(CONFIG, out, 700, shared=True))
        found.append(((out / "server" / "transcript.jsonl").read_text(), predicted.tolist()))
        monkeypatch.setattr(wire, "PIECE", SMALL)
    assert found[0] == found[1]


async def answer(parties: Parties, out: Path, announced: int, frames: list[bytes]) -> Stop:
    """The server's goodbye to a device that announces so many ids and sends these frames instead of them."""
    listener = MemoryListener(NAMES)
    async with (
        serving(parties.server(CONFIG, out), listener),
        listener.connector("west").connect() as stream,
    ):
        await stream.write(pack(hello(CONFIG, "", 0, bytes(16 * announced))))
        for frame in frames:
            await stream.write(frame)
        while not isinstance(message := unpack(None, await next_frame(stream, 5)), Stop):
            assert isinstance(message, Welcome)
        return message


DRAW = np.random.default_rng(0)
IDS = [ListPiece(start, DRAW.bytes(length)) for start, length in [(0, 1000), (1000, 1000), (2000, 400)]]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([IDS[0], IDS[2], IDS[1]], "has 1000 bytes and follows 1000 bytes, got one of 400 bytes that follows 2000"),
        ([IDS[0], IDS[0]], "follows 1000 bytes, got one of 1000 bytes that follows 0"),
        ([*IDS[:2], ListPiece(2000, bytes(416))], "the next has 400 bytes and follows 2000 bytes, got one of 416"),
        ([*IDS[:2], ListPiece(2000, bytes(384))], "the next has 400 bytes and follows 2000 bytes, got one of 384"),
        ([IDS[0], Stop("bye", False)], "must send its hashed ids, got Stop"),
    ],
    ids=["another order", "the same again", "too many", "too few", "something else"],
)
def test_a_device_sends_the_ids_it_announced(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[Any], said: str
) -> None:
    monkeypatch.setattr(wire, "PIECE", SMALL)
    goodbye = asyncio.run(answer(parties, tmp_path, 150, [pack(one) for one in sent]))
    assert said in goodbye.reason
    assert not goodbye.refused


def test_a_device_with_too_many_ids_is_refused_for_good(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_IDS", 100)
    goodbye = asyncio.run(answer(parties, tmp_path, 101, []))
    assert "at most 100 ids, device 4 has 101" in goodbye.reason
    assert goodbye.refused


def conversation(parties: Parties, out: Path) -> Any:
    talk = parties.device(CONFIG, 1, out).conversation
    assert list(talk.answers(Welcome(1, "0" * 32, "train", False))) == []
    return talk


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([Rows(300, 100), ListPiece(1000, bytes(1000))], "the next has 1000 bytes and follows 0 bytes"),
        ([Rows(300, 100), Ask("rounds")], "the server must send row numbers next, got Ask"),
        ([Rows(10**6, 10**6)], "may name at most"),
        ([ListPiece(0, bytes(1000))], "before the rows"),
    ],
    ids=["another order", "something else", "too many", "not announced"],
)
def test_a_device_takes_the_rows_that_were_announced(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[Any], said: str
) -> None:
    monkeypatch.setattr(wire, "PIECE", SMALL)
    talk = conversation(parties, tmp_path)
    *before, last = sent
    for message in before:
        assert list(talk.answers(message)) == []
    with pytest.raises(PeerError, match=said):
        list(talk.answers(last))
    talk.hello()  # a new link begins anew
    assert list(talk.answers(Welcome(1, "0" * 32, "train", False))) == []


def test_first_halves_that_agree_do_not_join_other_ids() -> None:
    """A device that does not hash honestly can send what begins like another's hash; ids are compared as a whole."""
    own = np.random.default_rng(0).integers(0, 256, (50, 16), dtype=np.uint8)
    forged, twins = own.copy(), own.copy()
    forged[:10, 8:] ^= 1
    twins[1, :8] = twins[0, :8]
    found = aligned(own, [forged[::-1], own])
    assert (found.n, found.with_server) == (40, (50, 40, 50))
    assert (own[found.rows[0]] == forged[::-1][found.rows[1]]).all()
    found = aligned(twins, [twins[::-1]])
    assert found.n == 50
    assert (twins[found.rows[0]] == twins[::-1][found.rows[1]]).all()


MILLIONS = 3_000_000
LARGE = configuration.parse(
    {
        "data": {"name": "digits", "holdout": 0.5},
        "devices": {"model": "linear", "embedding": 2},
        "train": {"rounds": 4, "B": 512, "eval_every": 10**9},
        "head": {"rule": "frozen", "hidden": 4, "refit_steps": 20},
        "noise": {"source": "seeded"},
        "network": {"devices": ["east", "west"]},
        "runtime": {"kind": "network", "threads": 1},
    }
)


class Large:
    """A server and two devices with n records each, of which all share most, in one process."""

    def __init__(self, n: int, out: Path) -> None:
        draw = np.random.default_rng(0)
        ids = draw.integers(0, 256, (n + n // 10, 16), dtype=np.uint8)
        self.hashes = [ids[draw.permutation(len(ids))[:n]] for _ in range(3)]
        self.labels = LabelRecords(self.hashes[0], draw.integers(0, 2, n), "classes", 2, "random")
        x = draw.standard_normal((n, 2), dtype=np.float32)
        self.devices = [
            DeviceParty(LARGE, FeatureRecords(hashes, x), out / name)
            for name, hashes in zip(LARGE.network.devices, self.hashes[1:], strict=True)
        ]

    def run(self, listener: MemoryListener) -> list[asyncio.Task[None]]:
        """The devices take part."""
        pairs = zip(LARGE.network.devices, self.devices, strict=True)
        return [asyncio.create_task(device.run(listener.connector(name))) for name, device in pairs]


@asynccontextmanager
async def ticking(longest: list[float]) -> AsyncIterator[None]:
    """Notes for how long the event loop did nothing else, each time."""

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.02)
            now = time.perf_counter()
            longest.append(now - last)
            last = now

    task = asyncio.create_task(tick())
    yield
    task.cancel()


@pytest.mark.soak
def test_millions_of_ids_are_aligned_beside_the_event_loop(tmp_path: Path) -> None:
    """From the first hello until the devices fill the table the server answers whoever asks, within a second."""
    gaps: list[float] = []

    async def act() -> None:
        large = Large(MILLIONS, tmp_path)
        server = ServerParty(LARGE, large.labels, RunFolder.create(tmp_path / "server", configuration.render(LARGE)))
        listener = MemoryListener(LARGE.network.devices)
        async with serving(server, listener), ticking(gaps):
            devices = large.run(listener)
            async with asyncio.timeout(240):
                while server.status().waits != "the first embeddings of west" and server.status().stage != "rounds":
                    await asyncio.sleep(0.02)
            for device in large.devices:
                device.stop()
            await asyncio.wait(devices, timeout=20)

    asyncio.run(act())
    assert max(gaps) < 1


@pytest.mark.soak
def test_millions_of_records_are_predicted(tmp_path: Path) -> None:
    gaps: list[float] = []

    async def trained() -> None:
        small, listener = Large(4000, tmp_path), MemoryListener(LARGE.network.devices)
        server = ServerParty(LARGE, small.labels, RunFolder.create(tmp_path / "server", configuration.render(LARGE)))
        async with serving(server, listener) as finished:
            devices = small.run(listener)
            assert await asyncio.wait_for(finished, 60) is not None
            await asyncio.gather(*devices)

    async def predicted() -> int:
        large, listener = Large(MILLIONS, tmp_path), MemoryListener(LARGE.network.devices)
        own = Large(4000, tmp_path / "other").labels
        shared = aligned(large.hashes[0], large.hashes[1:])
        wanted = large.hashes[0][shared.rows[0]]
        predictor = Predictor(LARGE, own, RunFolder.existing(tmp_path / "server"), lambda: wanted)
        async with ticking(gaps):
            task = asyncio.create_task(predictor.run(listener, 240))
            await asyncio.sleep(0.1)
            devices = large.run(listener)
            output = await task
            await asyncio.wait_for(asyncio.gather(*devices), 20)
        assert len(output) == len(wanted)
        return len(output)

    asyncio.run(trained())
    assert asyncio.run(predicted()) > 2_097_152
    assert max(gaps) < 1
