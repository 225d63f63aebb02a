"""Private set intersection: the records are those that hashes find, and the server learns nothing about other ids."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import math
import resource
import sys
import time
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from federation import NAMES, Parties, config_of, serving
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv.config import Config
from dpzv.data.alignment import Fewest, aligned, keyed
from dpzv.data.psi import SecretNumber
from dpzv.errors import ConfigError, DataError, PeerError, PeerRefused
from dpzv.network import logs, wire
from dpzv.network.alignment_state import AlignmentState, LabelRecords
from dpzv.network.beginning import hear_ids
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.device_party import DeviceParty
from dpzv.network.feature_records import FeatureRecords, OwnIds
from dpzv.network.greeting import greet
from dpzv.network.hidden_ids import HiddenIds
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.server_party import ServerParty
from dpzv.network.transport import Peer, Stream
from dpzv.network.wire import PIECE, POINTS, Hidden, ListPiece, Rows, Stop, Welcome, pack, unpack

SHORT = ("train.B=64", "head.rule=frozen", "train.rounds=8", "train.eval_every=8", "head.refit_steps=5")
HASHES, PSI = config_of(*SHORT), config_of(*SHORT, "network.alignment=psi")
KEY = b"the parties have this key alone."


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """A fifth of the records of digits, the same ones at every party: to hide an id takes a tenth of a millisecond."""
    made = Parties.made(tmp_path_factory.mktemp("parties"))
    labels, few = made.labels, made.labels.hashes[:, 0] < 51
    made.labels = dataclasses.replace(labels, hashes=labels.hashes[few], y=labels.y[few])
    for m, own in enumerate(made.features):
        few = own.hashes[:, 0] < 51
        made.features[m] = FeatureRecords(own.hashes[few], own.x[few])
    return made


@pytest.fixture(scope="module")
def by_hashes(parties: Parties, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose ids were compared as hashes."""
    out = tmp_path_factory.mktemp("hashes")
    assert asyncio.run(asyncio.wait_for(parties.together(HASHES, out), 60)) is not None
    return out


def transcript(out: Path) -> str:
    return (out / "server" / "transcript.jsonl").read_text()


def features(ids: list[str], key: bytes = KEY) -> FeatureRecords:
    return FeatureRecords(keyed(ids, key), np.arange(len(ids), dtype=np.float32)[:, None], (), key)


class Meeting(MemoryListener):
    """A server that only aligns ids: it hears the devices named so far, and keeps every frame that they send."""

    def __init__(self, config: Config, ids: list[str], devices: int, out: Path) -> None:
        super().__init__(NAMES)
        labels = LabelRecords(keyed(ids, KEY), np.zeros(len(ids), np.int64), "binary", 2, "made up")
        self.config = config
        self.state = AlignmentState(out, labels, devices, 0.0, Fewest(), config.network.alignment == "psi")
        self.frames: list[bytes] = []
        self.keep = True

    async def hear(self, stream: Stream) -> None:
        read = stream.read

        async def heard() -> bytes | None:
            frame = await read()
            if self.keep:
                self.frames.append(frame or b"")
            return frame

        stream.read = heard  # type: ignore[method-assign]
        m, hello = await greet(stream, self.config)
        peer = Peer(m, stream)
        try:
            assert self.state.needs(m, hello.ids_sha256)
            await peer.tell(Welcome(m, "", "train", True))
            await hear_ids(peer, hello, self.state)
            await peer.close("that is all", final=True)
        except PeerError as error:
            await peer.close(str(error), refused=isinstance(error, PeerRefused))

    @property
    def lists(self) -> list[bytes]:
        """What came in lists, the pieces of all of them."""
        found = [unpack(None, frame) for frame in self.frames]
        return [message.data for message in found if isinstance(message, ListPiece)]


async def converse(stream: Stream, talk: Conversation) -> str:
    """A device answers until the server's goodbye, whose reason is returned."""
    await stream.write(talk.hello())
    while not isinstance(message := unpack(talk.codec, await stream.read() or b""), Stop):
        for frame in talk.answers(message):
            await stream.write(frame)
    return message.reason


async def meet(meeting: Meeting, devices: list[FeatureRecords], out: Path) -> list[Conversation]:
    """All devices send their ids; the conversations that they had."""
    await meeting.start(meeting.hear)
    talks = [Conversation(meeting.config, own, DeviceFolder(out / str(m))) for m, own in enumerate(devices, 1)]
    for name, talk in zip(NAMES, talks, strict=False):
        async with meeting.connector(name).connect() as stream:
            assert await converse(stream, talk) == "that is all"
    return talks


ids_of = st.lists(st.integers(0, 12).map(str), max_size=9, unique=True)


@settings(max_examples=15, deadline=None)
@given(server=ids_of, devices=st.lists(ids_of, min_size=1, max_size=3))
def test_hidden_ids_are_aligned_as_hashes_are(server: list[str], devices: list[list[str]]) -> None:
    """One id, none, none that is shared, several devices: every party finds the same rows in the same order."""
    hashes = [keyed(ids, KEY) for ids in devices]
    found = aligned(keyed(server, KEY), hashes, Fewest(0))
    with TemporaryDirectory() as folder:
        out = Path(folder)
        meeting = Meeting(PSI, server, len(devices), out)
        talks = asyncio.run(meet(meeting, [features(ids) for ids in devices], out))
        if not found.n:
            with pytest.raises(DataError, match=r"must share at least 1 ids, got 0") as refused:
                meeting.state.settle()
            assert found.counts() in str(refused.value)
            return
        meeting.state.settle()
        assert meeting.state.counts == found.counts()
        for m, talk in enumerate(talks, 1):
            assert talk._own.rows(meeting.state._rows_of(m)).tolist() == found.rows[m].tolist()
        assert meeting.state._rows_of(0).tolist() == found.rows[0].tolist()


def test_a_run_with_hidden_ids_is_that_with_hashes(parties: Parties, by_hashes: Path, tmp_path: Path) -> None:
    """The same records in the same order: the same rounds, and the same predictions, over TLS as well."""
    assert asyncio.run(asyncio.wait_for(parties.together_over_tls(PSI, tmp_path), 60)) is not None
    assert transcript(tmp_path) == transcript(by_hashes)
    predicted = [
        asyncio.run(parties.predicted(config, out, 30, shared=True))
        for config, out in ((HASHES, by_hashes), (PSI, tmp_path))
    ]
    torch.testing.assert_close(predicted[1], predicted[0])
    assert (tmp_path / "west" / "ids.key").stat().st_mode & 0o777 == 0o600


def test_whoever_comes_back_goes_on(parties: Parties, by_hashes: Path, tmp_path: Path) -> None:
    """A link is cut among the hidden ids, then all parties are stopped in the middle of the rounds and start again."""

    class Cutting(MemoryListener):
        """Cuts the first link of west when its answer has come, and stops the server in the round `until`."""

        def __init__(self, server: ServerParty, until: float) -> None:
            super().__init__(NAMES)
            self.server, self.until, self.came = server, until, 0

        async def start(self, talk: Any) -> None:
            async def cutting(stream: Stream) -> None:
                read = stream.read

                async def heard() -> bytes | None:
                    frame = await read()
                    if stream.peer_name == "west":
                        self.came += 1
                        if self.came == 3:
                            stream.cut()
                        if self.server.status().round >= self.until:
                            self.server.stop()
                    return frame

                stream.read = heard  # type: ignore[method-assign]
                await talk(stream)

            await super().start(cutting)

    async def act(until: float) -> dict[str, Any] | None:
        server = parties.server(PSI, tmp_path / "server")
        listener = Cutting(server, until)
        async with serving(server, listener) as finished:
            devices = [parties.device(PSI, m, tmp_path / name) for m, name in enumerate(NAMES, 1)]
            running = [
                asyncio.create_task(device.run(listener.connector(name)))
                for name, device in zip(NAMES, devices, strict=True)
            ]
            summary = await finished
            for device in devices:
                device.stop()
            await asyncio.gather(*running)
            assert listener.came > 3
            return summary

    assert asyncio.run(asyncio.wait_for(act(3), 60)) is None
    assert asyncio.run(asyncio.wait_for(act(math.inf), 60)) is not None
    assert transcript(tmp_path) == transcript(by_hashes)


def test_a_device_that_lost_its_folder_is_told_what_it_lacks(parties: Parties, tmp_path: Path) -> None:
    state = AlignmentState(tmp_path, parties.labels, 4, 0.2, Fewest(), True)
    talks = [parties.device(PSI, m, tmp_path / str(m)).conversation for m in range(1, 5)]
    said = [unpack(None, talk.hello()) for talk in talks]
    for m, own in enumerate(parties.features, 1):
        hello = said[m - 1]
        assert isinstance(hello, wire.Hello)
        state.take(m, own.hashes, hello.ids_sha256)
    state.settle()
    again = unpack(None, parties.device(PSI, 2, tmp_path / "2").conversation.hello())
    assert again == said[1]
    assert isinstance(again, wire.Hello)
    assert not state.needs(2, again.ids_sha256)
    lost = unpack(None, parties.device(PSI, 2, tmp_path / "new").conversation.hello())
    assert isinstance(lost, wire.Hello)
    with pytest.raises(PeerRefused, match=r"give it the file and the folder, which has the key that hides its ids,"):
        state.needs(2, lost.ids_sha256)
    (tmp_path / "2" / "state.safetensors").touch()
    (tmp_path / "2" / "ids.key").write_text("12")
    for _ in range(2):
        with pytest.raises(DataError, match=r"ids\.key must hold the 32 bytes by which this device hid its ids"):
            parties.device(PSI, 2, tmp_path / "2").conversation.check()
        (tmp_path / "2" / "ids.key").unlink(missing_ok=True)  # with weights it is not drawn anew


def can_test(meeting: Meeting, shared: list[str], x: Any, guess: str) -> bool:
    """Whether the server, which has the key and knows all of a device but one id, can tell by its messages a guess."""
    one = keyed([guess], KEY)
    if one.tobytes() in b"".join(meeting.lists):
        return True
    hello = unpack(None, meeting.frames[0])
    assert isinstance(hello, wire.Hello)
    for order in permutations([*shared, guess]):
        hashes = keyed(list(order), KEY)
        records = FeatureRecords(hashes, x, (), KEY).digests().records
        if hello.ids_sha256 == hashlib.sha256(hashes.tobytes()).hexdigest() or hello.digests.records == records:
            return True
    hidden = meeting.state.hidden
    if hidden is None:
        return False
    own = [number.hidden(one)[:, :16].tobytes() for number in (hidden._number, hidden._out)]
    return any(value in b"".join(meeting.lists) for value in own)


@pytest.mark.parametrize("config", [HASHES, PSI], ids=["hashes", "psi"])
def test_the_server_cannot_test_an_id_that_it_does_not_have(config: Config, tmp_path: Path) -> None:
    """With hashes it can: it finds the guess in the list, and in either digest. Hidden, the right guess is as any."""
    shared, seen = ["7", "8"], []
    for guess in ("her", "him"):
        out = tmp_path / guess
        meeting, own = Meeting(config, ["6", *shared], 1, out), features(["7", guess, "8"])
        asyncio.run(meet(meeting, [own], out))
        assert can_test(meeting, shared, own.x, guess) == (config is HASHES)
        assert not can_test(meeting, shared, own.x, "nobody")
        seen.append(meeting)
        if config is PSI:  # the digests alone are no test either
            frames = meeting.frames
            meeting.frames = frames[:1]
            assert not can_test(meeting, shared, own.x, guess)
            meeting.frames = frames
    assert [len(frame) for frame in seen[0].frames] == [len(frame) for frame in seen[1].frames]
    assert [meeting.state._sent[1][0].shape for meeting in seen] == [(3, 16)] * 2


def test_what_hides_an_id_is_new_in_every_exchange(tmp_path: Path) -> None:
    """Two lists of the same ids share no entry, their bits are fair coins, and their order is not that of the file."""
    ids, lists = [f"{i:04d}" for i in range(600)], []
    for name in ("a", "a", "b"):
        meeting = Meeting(PSI, ["0000", "0599"], 1, tmp_path)
        asyncio.run(meet(meeting, [features(ids)], tmp_path / name))
        lists.append(np.frombuffer(meeting.lists[0], "V16"))
        hashes = {row.tobytes() for row in keyed(ids, KEY)}
        known = [place for place, row in enumerate(meeting.state._sent[1][0]) if row.tobytes() in hashes]
        assert len(known) == 2
        assert set(known) != {0, 599}  # by chance once in 180,000 times
    assert len(np.unique(np.concatenate(lists))) == 1800
    bits = np.unpackbits(np.concatenate(lists).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5


def test_ids_that_repeat_are_refused_for_good(tmp_path: Path) -> None:
    async def act() -> str:
        meeting = Meeting(PSI, ["7"], 1, tmp_path)
        await meeting.start(meeting.hear)
        async with meeting.connector("north").connect() as stream:
            return await converse(stream, Conversation(PSI, features(["7", "8", "7"]), DeviceFolder(tmp_path)))

    told = "device 1 must name every id once, but 1 of 3 repeat another; keep one row for each id."
    assert asyncio.run(act()) == told


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda points: points[:1].repeat(len(points), 0), "device 1 gave the same answer for two ids"),
        (lambda points: points | 255, "a hidden id must be a point of the curve"),
        (lambda points: points[1:], "the next has 96 bytes and follows 0 bytes, got one of 64"),
    ],
    ids=["the same", "no points", "too few"],
)
def test_a_device_that_answers_wrongly_is_closed(answer: Any, said: str, tmp_path: Path) -> None:
    async def act() -> str:
        meeting = Meeting(PSI, ["7", "8", "9"], 1, tmp_path)
        await meeting.start(meeting.hear)
        talk = Conversation(PSI, features(["7", "9"]), DeviceFolder(tmp_path))
        talk.hello()
        honest = talk._own.answer
        talk._own.answer = lambda points: answer(honest(points))  # type: ignore[method-assign]
        async with meeting.connector("north").connect() as stream:
            return await converse(stream, talk)

    assert said in asyncio.run(act())


def test_a_device_answers_the_points_that_were_announced_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert PIECE % POINTS.itemsize == 0
    caplog.set_level(logging.INFO)
    point = SecretNumber().hidden(keyed(["7"], KEY)).tobytes()
    for config, allowed in ((HASHES, False), (PSI, True)):
        talk = Conversation(config, features(["7"]), DeviceFolder(tmp_path))
        talk.hello()
        with pytest.raises(PeerError, match="once after it was sent hidden ones"):
            list(talk.answers(Hidden(1)))
        assert len(list(talk.answers(Welcome(1, "", "train", True)))) == 1
        if allowed:
            assert list(talk.answers(Hidden(1))) == []
            with pytest.raises(PeerError, match="the server must send hidden ids next, got Rows"):
                list(talk.answers(Rows(1, 0)))
            with pytest.raises(PeerError, match="the next has 32 bytes and follows 0 bytes, got one of 64"):
                list(talk.answers(ListPiece(0, 2 * point)))
            assert len(list(talk.answers(ListPiece(0, point)))) == 1
        with pytest.raises(PeerError, match="once after it was sent hidden ones"):
            list(talk.answers(Hidden(1)))
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "keyed hashes of all 1 ids of this device, by which it can test any id" in said
    assert "the server names 1 ids and learns which of them are among the 1 of this device" in said


def test_where_the_package_is_missing_both_sides_say_so_before_they_connect(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    with pytest.raises(ConfigError, match=r"needs the Python package openmined-psi.*pip install 'dpzv\[psi\]'"):
        parties.server(PSI, tmp_path / "server")
    with pytest.raises(ConfigError, match="openmined-psi"):
        parties.device(PSI, 1, tmp_path / "north").conversation.check()
    parties.server(HASHES, tmp_path / "other")


def test_parties_agree_on_how_ids_are_compared() -> None:
    assert wire.agreed_hash(PSI) != wire.agreed_hash(HASHES)
    assert msgspec.structs.replace(PSI, network=HASHES.network) == HASHES


def test_a_list_made_part_by_part_has_the_frames_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", 1000)
    whole = np.random.default_rng(0).integers(0, 256, (300, 16), dtype=np.uint8)
    for size in (1, 62, 63, 125, 300):
        parts = [whole[start : start + size] for start in range(0, 300, size)]
        assert list(wire.streamed(parts)) == list(wire.pieces(whole))
    assert list(wire.streamed([])) == []
    assert pack(ListPiece(0, whole[:62].tobytes() + whole[62, :8].tobytes())) == next(wire.streamed([whole]))


def test_the_log_says_how_far_long_work_is(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    progress = logs.LoggedProgress(logging.getLogger("dpzv.server"), "ids are hidden", 4000)
    progress.tell(500)
    assert not caplog.records  # it has just begun
    monkeypatch.setattr(logs, "PROGRESS_SECONDS", 0.0)
    for done in (1000, 4000):
        progress.tell(done)
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("ids are hidden: [#####...............] 1000 of 4000, about ")
    assert said[1] == "ids are hidden: [####################] 4000 of 4000, about 0 s left"


MILLION = 1_000_000
BYTES_AN_ID = 400
"""What both ends together may take for an id that each of them has, beside the ids themselves."""


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.soak
def test_a_million_ids_are_compared_in_bounded_memory_with_progress_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    draw = np.random.default_rng(0)
    ids = draw.integers(0, 256, (MILLION + MILLION // 10, 16), dtype=np.uint8)
    server, own = (ids[draw.permutation(len(ids))[:MILLION]] for _ in range(2))
    meeting = Meeting(PSI, ["0"], 1, tmp_path)
    meeting.state.hidden = HiddenIds(server)
    held, gaps = [resident()], [0.0]

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.05)
            held.append(resident())
            gaps.append(time.perf_counter() - before)

    async def act() -> None:
        meeting.keep = False
        await meeting.start(meeting.hear)
        watching = asyncio.create_task(watch())
        device = DeviceParty(PSI, FeatureRecords(own, np.zeros((MILLION, 1), np.float32)), tmp_path / "north")
        await device.run(meeting.connector("north"))
        watching.cancel()

    asyncio.run(act())
    found = aligned(server, [own])
    known = aligned(server, [meeting.state._sent[1][0]])
    assert (known.rows[0] == found.rows[0]).all()
    assert (OwnIds(own, DeviceFolder(tmp_path / "north").ids_key()).rows(known.rows[1]) == found.rows[1]).all()
    assert max(held) - held[0] < BYTES_AN_ID * MILLION
    assert max(gaps) < 5  # neither side kept the event loop from answering others
    said = [record.getMessage() for record in caplog.records]
    for work in ("the server's ids are hidden", "this device's ids are hidden", "compared with those of device 1"):
        assert any(f"{work}: [" in line and f"of {MILLION}, about" in line for line in said), work
