"""Who is refused, and why. Wrong certificates: `test_network_identity.py`; here: wrong words of right people."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from federation import NAMES, Parties, config_of, hello, serving
from msgspec.structs import replace

from dpzv.config import Config
from dpzv.data.alignment import Fewest
from dpzv.errors import PrivacyRefused
from dpzv.network.alignment_state import AlignmentState
from dpzv.network.beginning import open_run
from dpzv.network.grpc_log import refusals_logged
from dpzv.network.grpc_transport import METHOD, GrpcStream, peer_option
from dpzv.network.identity import LOCAL_HOSTS, issue_certificate, make_authority, new_key
from dpzv.network.keyfiles import load_authority
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.server_party import ServerParty
from dpzv.network.transport import Connector, LinkLost, Stream, next_frame
from dpzv.network.wire import MESSAGE, Ask, Done, ListPiece, Rows, Stop, Welcome, pack, unpack
from dpzv.privacy import head_steps
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.statement import read_ledger
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Pending
from dpzv.runtime.run_folder import RunFolder

CONFIG = config_of("head.rule=frozen", "train.rounds=8")
PRIVATE = config_of(
    "head.rule=frozen",
    "train.rounds=8",
    "devices.model=linear",
    "devices.start=dp-pca",
    "devices.R=8",
    "privacy.epsilon=8",
)
CODEC = Codec("float32", 1e-3)
WIDTH, B = 8, 256


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


def embeddings(m: int, position: int, rows: int, arrays: int = 2) -> bytes:
    return CODEC.encode(Embeddings(m, position, (np.zeros((rows, WIDTH), np.float32),) * arrays), MESSAGE)


async def heard(parties: Parties, stream: Stream, name: str, config: Config) -> AsyncIterator[object]:
    """Say hello as the device `name` without a folder, and send its ids; what the server says, up to its goodbye."""
    own, message = parties.features[NAMES.index(name)], None
    hashes = own.hashes.tobytes()
    await stream.write(pack(hello(config, "", 0, hashes, own.digests())))
    while not isinstance(message, Stop):
        message = unpack(CODEC, await next_frame(stream, 30))
        if isinstance(message, Welcome) and message.needs_ids:
            await stream.write(pack(ListPiece(0, hashes)))
        yield message


async def said(
    parties: Parties,
    listener: MemoryListener,
    name: str,
    frames: list[bytes],
    when: str = "rows",
    config: Config = CONFIG,
) -> str:
    """Connect as `name`, say `frames` once the rows are known (or the rounds begin); the server's goodbye."""
    m, D, D_test = NAMES.index(name) + 1, 0, 0
    async with listener.connector(name).connect() as stream:
        async for message in heard(parties, stream, name, config):
            if isinstance(message, Stop):
                return message.reason
            if isinstance(message, Rows):
                D, D_test = message.train, message.test
            if (when == "rows" and isinstance(message, Rows)) or message == Ask("rounds"):
                for frame in frames:
                    await stream.write(frame)
            elif when == "rounds" and message == Ask("fill"):
                await stream.write(CODEC.encode(Fill(m, 0, np.zeros((D, WIDTH), np.float32)), MESSAGE))
                await stream.write(pack(Done("fill")))
            elif when == "rounds" and message == Ask("evaluate"):
                await stream.write(CODEC.encode(Evaluation(m, 0, np.zeros((D_test, WIDTH), np.float32)), MESSAGE))
                await stream.write(pack(Done("evaluate")))
    raise AssertionError("the server always says goodbye")


def pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


async def refused(parties: Parties, out: Path, act: Callable[[MemoryListener], Awaitable[str]]) -> str:
    """What the server says to one who misbehaves, while the true devices finish their run."""
    listener = MemoryListener(NAMES)
    async with serving(parties.server(CONFIG, out / "server"), listener) as finished:
        return await while_others_finish(parties, out, finished, listener.connector, lambda: act(listener))


async def while_others_finish(
    parties: Parties,
    out: Path,
    finished: asyncio.Task[Any],
    connector: Callable[[str], Connector],
    act: Callable[[], Awaitable[str]],
) -> str:
    """What `act` gives once three devices are started; then the fourth comes, and the run must be a whole one."""
    parts = [
        asyncio.create_task(parties.device(CONFIG, m, out / name).run(connector(name)))
        for m, name in enumerate(NAMES[:3], 1)
    ]
    reason = await act()
    parts.append(asyncio.create_task(parties.device(CONFIG, 4, out / NAMES[3]).run(connector(NAMES[3]))))
    summary = await asyncio.wait_for(finished, 60)
    assert summary is not None
    assert summary["rounds"] == 8
    await asyncio.wait_for(asyncio.gather(*parts), 30)
    return reason


async def last_word(stream: Stream) -> str:
    """The reason of a server that says goodbye at once."""
    message = unpack(None, await next_frame(stream, 20))
    assert isinstance(message, Stop)
    return message.reason


@pytest.mark.parametrize(
    ("frames", "word"),
    [
        ([b"nonsense"], "a frame begins with"),
        ([b"m\x93"], "could not be decoded"),
        ([embeddings(4, 0, 1)], "out of turn"),  # before the rounds began
        ([embeddings(1, 0, B)], "spoke for device 1"),
        ([pack(Welcome(4, "", "train", False))], "out of turn"),
        ([pack(ListPiece(0, bytes(32)))], "out of turn"),
    ],
    ids=["noise", "cut", "early", "another's name", "the server's words", "ids again"],
)
def test_a_device_that_misbehaves_is_closed_with_a_reason(
    parties: Parties, tmp_path: Path, frames: list[bytes], word: str
) -> None:
    reason = asyncio.run(refused(parties, tmp_path, lambda there: said(parties, there, NAMES[3], frames)))
    assert word in reason


@pytest.mark.parametrize(
    ("frames", "word"),
    [
        ([embeddings(4, 0, 1)], f"embeddings of {B} records"),
        ([embeddings(4, 0, B, arrays=1)], "must send 2 embeddings"),
        ([embeddings(4, 1, B)], "must send batch 0 of its schedule, got 1"),
        ([embeddings(4, 0, B), embeddings(4, 0, B)], "batch"),
        ([embeddings(3, 0, B)], "spoke for device 3"),
    ],
    ids=["a batch of one", "half a batch", "ids out of schedule", "the same ids again", "another's name"],
)
def test_a_wrong_batch_is_refused_and_not_released(
    parties: Parties, tmp_path: Path, frames: list[bytes], word: str
) -> None:
    """Record ids are the public schedule's: a batch names its place there, so a device cannot choose or repeat them."""
    reason = asyncio.run(refused(parties, tmp_path, lambda there: said(parties, there, NAMES[3], frames, "rounds")))
    assert word in reason
    assert "closed" in reason


def test_another_configuration_is_refused(parties: Parties, tmp_path: Path) -> None:
    other = config_of("head.rule=frozen", "train.rounds=9")

    async def act(listener: MemoryListener) -> str:
        async with listener.connector(NAMES[3]).connect() as stream:
            await stream.write(pack(hello(other, "", 0, b"")))
            return await last_word(stream)

    assert "another run configuration" in asyncio.run(refused(parties, tmp_path, act))


@pytest.mark.parametrize(
    ("who", "logged"),
    [
        ("nobody", "handshake: it showed no certificate;"),
        ("a stranger", "'stranger' is not a device of this run"),
        ("another authority's device", "handshake: its certificate is of another authority;"),
        ("a device of last year", "handshake: its certificate has expired;"),
    ],
)
def test_the_server_of_a_run_lets_nobody_in_but_its_devices(
    parties: Parties, tmp_path: Path, who: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run's own listener: without a valid certificate there is no link, with a stranger's no place in the run."""
    root = (parties.folder / "ca" / "ca.crt").read_bytes()
    ours, theirs = load_authority(parties.folder / "ca"), make_authority(10)
    key, past = new_key(), datetime.now(UTC) - timedelta(days=400)
    issued = {
        "nobody": None,
        "a stranger": issue_certificate(ours, "stranger", LOCAL_HOSTS, key.public_key(), 1),
        "another authority's device": issue_certificate(theirs, NAMES[3], LOCAL_HOSTS, key.public_key(), 1),
        "a device of last year": issue_certificate(ours, NAMES[3], LOCAL_HOSTS, key.public_key(), 365, now=past),
    }[who]
    own = None if issued is None else (pem_key(key), issued.public_bytes(serialization.Encoding.PEM))

    async def knock(port: int) -> str:
        credentials = grpc.ssl_channel_credentials(root, *(own or (None, None)))
        with refusals_logged():
            channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=[peer_option("server")])
            stream = GrpcStream(channel.stream_stream(METHOD)(), "server")
            try:
                await stream.write(pack(hello(CONFIG, "", 0, parties.features[3].hashes.tobytes())))
                return await last_word(stream)
            except LinkLost as error:
                return str(error)
            finally:
                await channel.close()

    async def run() -> str:
        listener = parties.tls_listener()
        async with serving(parties.server(CONFIG, tmp_path / "server"), listener) as finished:
            connector = lambda name: parties.tls_connector(name, listener.port)  # noqa: E731
            return await while_others_finish(parties, tmp_path, finished, connector, lambda: knock(listener.port))

    reason = asyncio.run(run())
    assert "'stranger' is not a device of this run" in reason if who == "a stranger" else "UNAVAILABLE" in reason
    assert logged in caplog.text


def test_what_is_not_about_a_handshake_stays_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        with refusals_logged():
            os.write(2, b"something else\n")

    asyncio.run(write())
    assert capfd.readouterr().err == "something else\n"
    os.write(2, b"and later\n")
    assert capfd.readouterr().err == "and later\n"


def test_ids_that_are_there_twice_are_refused(
    parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner keeps one row an id, and then the run goes on."""

    async def act(listener: MemoryListener) -> str:
        while caplog.text.count("is here") < 3:  # so that this one is the last whose ids are missing
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        hashes = parties.features[3].hashes
        twice = np.concatenate([hashes, hashes[:3]]).tobytes()
        async with listener.connector(NAMES[3]).connect() as stream:
            await stream.write(pack(hello(CONFIG, "", 0, twice)))
            assert isinstance(unpack(None, await next_frame(stream, 20)), Welcome)
            await stream.write(pack(ListPiece(0, twice)))
            return await last_word(stream)

    caplog.set_level("INFO", "dpzv")
    assert "must name every id once, but 3 of" in asyncio.run(refused(parties, tmp_path, act))
    assert any("3 of" in r.getMessage() for r in caplog.records if r.levelname == "ERROR")


def test_a_private_start_that_was_lost_is_not_drawn_again(parties: Parties, tmp_path: Path) -> None:
    """A device without its folder may come back (`test_network_schedules.py`), but not where its start had noise."""
    assert asyncio.run(parties.together(PRIVATE, tmp_path)) is not None

    async def come_back() -> str:
        listener = MemoryListener(NAMES)
        async with serving(parties.server(PRIVATE, tmp_path / "server"), listener):
            return await said(parties, listener, "east", [], config=PRIVATE)

    assert "lost its folder, and with it its private start" in asyncio.run(come_back())


async def come(parties: Parties, listener: MemoryListener, name: str, *, rows: int, done: bool = False) -> str:
    """Come as a device without a folder, fill so many rows (all with `done`), and leave; or the reason of a refusal."""
    m = NAMES.index(name) + 1
    async with listener.connector(name).connect() as stream:
        async for message in heard(parties, stream, name, PRIVATE):
            if isinstance(message, Stop):
                return message.reason
            if isinstance(message, Rows):
                rows = message.train if done else rows
            if message == Ask("fill"):
                if rows:
                    await stream.write(CODEC.encode(Fill(m, 0, np.zeros((rows, WIDTH), np.float32)), MESSAGE))
                if done:
                    await stream.write(pack(Done("fill")))
                await stream.write(pack(Stop("leaving", False)))
                await stream.close()
                return "" if await stream.read() is None else "more"
    raise AssertionError("the server always says goodbye")


@pytest.mark.parametrize(("rows", "done"), [(0, False), (20, False), (0, True)], ids=["none", "some", "all"])
@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_a_private_start_that_was_seen_is_not_drawn_again_before_the_rounds(
    parties: Parties, tmp_path: Path, rows: int, done: bool, restarted: bool
) -> None:
    """Rows of the table would be of the first start, and all that follows of the second; only one is paid for."""

    async def twice() -> str:
        listener = MemoryListener(NAMES)
        async with serving(parties.server(PRIVATE, tmp_path), listener):
            others = [asyncio.create_task(come(parties, listener, name, rows=0)) for name in NAMES[1:]]
            assert await come(parties, listener, NAMES[0], rows=rows, done=done) == ""
            await asyncio.gather(*others)
            if not restarted:
                return await come(parties, listener, NAMES[0], rows=0)
        listener = MemoryListener(NAMES)
        async with serving(parties.server(PRIVATE, tmp_path), listener):
            return await come(parties, listener, NAMES[0], rows=0)

    reason = asyncio.run(asyncio.wait_for(twice(), 60))
    seen = bool(rows or done)
    assert ("lost its folder, and with it its private start" in reason) == seen
    assert (reason == "") != seen  # nobody has seen anything of a start that was never used: it may be drawn again


def test_no_more_is_released_than_was_planned(parties: Parties, tmp_path: Path) -> None:
    """A run that is over its rounds cannot be given more of them: the ledger knows what was promised."""
    finished = asyncio.run(asyncio.wait_for(parties.together(CONFIG, tmp_path), 60))
    assert finished is not None
    (tmp_path / "server" / "summary.json").unlink()
    more = config_of("head.rule=frozen", "train.rounds=9")
    server = ServerParty(more, parties.labels, RunFolder.existing(tmp_path / "server"))
    with pytest.raises(PrivacyRefused, match="began"):
        asyncio.run(asyncio.wait_for(server.run(MemoryListener(NAMES)), 20))
    assert read_ledger(tmp_path / "server").releases == 8


@pytest.mark.parametrize(
    ("assignment", "named"),
    [("train.seed=5", r"train\.seed = 0, got 5"), ("train.eta_m=0.5", r"train\.eta_m = .*0\.5")],
)
def test_a_server_does_not_go_on_with_settings_that_were_edited(
    parties: Parties, tmp_path: Path, assignment: str, named: str
) -> None:
    """All parties and the run folder have the new settings, but the ledger has counted by the old ones."""
    assert asyncio.run(asyncio.wait_for(parties.together(CONFIG, tmp_path), 60)) is not None
    (tmp_path / "server" / "summary.json").unlink()
    other = config_of("head.rule=frozen", "train.rounds=8", assignment)
    server = ServerParty(other, parties.labels, RunFolder.existing(tmp_path / "server"))
    with pytest.raises(PrivacyRefused, match=named):
        asyncio.run(asyncio.wait_for(server.run(MemoryListener(NAMES)), 20))


def test_a_server_without_its_ledger_does_not_begin_again(parties: Parties, tmp_path: Path) -> None:
    assert asyncio.run(asyncio.wait_for(parties.together(CONFIG, tmp_path), 60)) is not None
    out = tmp_path / "server"
    for name in ("summary.json", "ledger.sqlite"):
        (out / name).unlink()
    shutil.rmtree(out / "checkpoint")
    server = ServerParty(CONFIG, parties.labels, RunFolder.existing(out))
    with pytest.raises(PrivacyRefused, match=r"ledger\.sqlite is missing"):
        asyncio.run(asyncio.wait_for(server.run(MemoryListener(NAMES)), 20))
    assert not (out / "ledger.sqlite").exists()


def test_a_gate_that_has_released_everything_refuses_the_next(parties: Parties, tmp_path: Path) -> None:
    """As the last line of defence, whatever the rounds of the server do."""
    asyncio.run(asyncio.wait_for(parties.together(CONFIG, tmp_path), 60))
    state = AlignmentState(tmp_path / "server", parties.labels, len(NAMES), CONFIG.data.holdout, Fewest(B))
    with open_run(CONFIG, state, RunFolder.existing(tmp_path / "server")) as run:
        pending = Pending(9, 1, 2, B, np.zeros(1, np.int64), run.plan.C / 2**40, B)
        with pytest.raises(PrivacyRefused, match="8 releases and all are made"):
            run.gate.submit(pending, bytes(32))
        assert run.ledger.releases == 8


@pytest.mark.parametrize(("began", "now"), [(2.0, 1.0), (1.0, 2.0)], ids=["less", "more"])
def test_a_server_does_not_go_on_under_an_accountant_that_plans_other_noise(
    began: float, now: float, parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger knows the head's z; one calibrated anew, to half or twice the noise, would claim the same epsilon."""
    config, known = config_of("train.rounds=8", "head.steps=4"), head_steps.MECHANISM

    def planning(factor: float) -> None:
        other = replace(known, calibrated=lambda *given, **named: factor * known.calibrated(*given, **named))
        monkeypatch.setattr(head_steps, "MECHANISM", other)

    planning(began)
    with monkeypatch.context() as killed:  # before its ledger was ended, so that it may go on
        killed.setattr(Ledger, "end", lambda ledger: None)
        assert asyncio.run(asyncio.wait_for(parties.together(config, tmp_path), 60)) is not None
    (tmp_path / "server" / "summary.json").unlink()
    planning(now)
    server = ServerParty(config, parties.labels, RunFolder.existing(tmp_path / "server"))
    with pytest.raises(PrivacyRefused, match="the run began with head noise z="):
        asyncio.run(asyncio.wait_for(server.run(MemoryListener(NAMES)), 20))
