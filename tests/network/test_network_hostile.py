"""Peers that mean harm (`hostile/`): the honest devices' run goes on, and the server stays small and ends when told."""

from __future__ import annotations

import asyncio
import logging
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from federation import NAMES, Parties, config_of, hello, serving
from hostile import again, bomb, crumbs, empties, frozen, stranger, talker
from hostile.http2 import Link
from town import town

from dpzv.config import Config
from dpzv.errors import PeerError
from dpzv.network import transport
from dpzv.network.grpc_log import refusals_logged
from dpzv.network.grpc_transport import GrpcListener
from dpzv.network.keyfiles import issue_party
from dpzv.network.server_party import ServerParty
from dpzv.network.wire import ListPiece, pack

FREE = ("head.rule=frozen", "network.order=arrival")
WIDE = ("head.rule=frozen", "train.method=vafl", "privacy.protects=labels", "devices.embedding=128")
SHAPE = (1, 256, 128)
"""A release of this method has 128 KiB, more than gRPC keeps for a peer that takes nothing."""
WEST = NAMES[3]


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    made = Parties.made(tmp_path_factory.mktemp("parties"))
    issue_party(made.folder / "ca", "stranger", made.folder / "stranger", None, 10)
    return made


def words(parties: Parties, config: Config, m: int = 4) -> list[bytes]:
    """The hello and the ids of device m."""
    hashes = parties.features[m - 1].hashes.tobytes()
    return [pack(hello(config, "", 0, hashes)), pack(ListPiece(0, hashes))]


class Run:
    """A server over TLS, and honest devices."""

    def __init__(self, server: ServerParty, listener: GrpcListener, finished: asyncio.Task[Any]) -> None:
        self.server, self.listener, self.finished = server, listener, finished

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def round(self) -> int:
        return self.server.status().round


@asynccontextmanager
async def running(parties: Parties, config: Config, out: Path, honest: int) -> AsyncIterator[Run]:
    """A run with the first `honest` devices."""
    listener, server = parties.tls_listener(), parties.server(config, out / "server")
    async with serving(server, listener) as finished:
        devices = [
            asyncio.create_task(parties.device(config, m, out / name).run(parties.tls_connector(name, listener.port)))
            for m, name in enumerate(NAMES[:honest], 1)
        ]
        try:
            yield Run(server, listener, finished)
        finally:
            for device in devices:
                device.cancel()
            await asyncio.gather(*devices, return_exceptions=True)


async def until(reached: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not reached():
            await asyncio.sleep(0.02)


def memory() -> int:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less time for a device to take what it is sent."""
    monkeypatch.setattr(transport, "WRITE_SECONDS", 1.0, raising=False)
    monkeypatch.setattr(transport, "SLOWEST_LINE", 1 << 20, raising=False)


def test_a_device_that_takes_nothing_holds_nobody_up(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three devices work through their rounds and evaluations; the fourth is cut, and the server ends when told."""
    hurry(monkeypatch)
    config = config_of(*WIDE, "network.order=arrival", "train.rounds=16", "train.eval_every=8")
    over = False

    async def act() -> tuple[str, float]:
        nonlocal over
        async with running(parties, config, tmp_path, 3) as run:
            attack = (run.port, parties.folder, WEST, words(parties, config), SHAPE, lambda: over)
            freezing = asyncio.create_task(asyncio.to_thread(frozen.attack, *attack))
            try:
                await until(lambda: run.round >= 12, 20)
                began = time.monotonic()
                run.server.stop()
                await asyncio.wait({run.finished}, timeout=10)
                assert run.finished.done()
                return "cut" if freezing.done() else "held", time.monotonic() - began
            finally:
                over = True
                await freezing

    held, seconds = asyncio.run(act())
    assert seconds < 8
    assert held == "cut"
    assert "device 4 did not take what it was sent" in caplog.text


def test_a_server_may_stop_for_a_device_that_takes_nothing(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`late = "stop"`, at a moment when an evaluation is due."""
    hurry(monkeypatch)
    stop = ("network.late=stop", "network.patience=1.5", "train.eval_every=4")
    config = config_of(*WIDE, "train.rounds=40", *stop)
    over = False

    async def act() -> float:
        nonlocal over
        async with running(parties, config, tmp_path, 3) as run:
            attack = (run.port, parties.folder, WEST, words(parties, config), SHAPE, lambda: over)
            freezing = asyncio.create_task(asyncio.to_thread(frozen.attack, *attack))
            try:
                await until(lambda: run.round == 4, 20)
                began = time.monotonic()
                with pytest.raises(PeerError, match="no device that the run needs came"):
                    await asyncio.wait_for(run.finished, 12)
                return time.monotonic() - began
            finally:
                over = True
                await freezing

    assert asyncio.run(act()) < 10


@pytest.mark.parametrize("name", [WEST, "stranger"])
def test_a_compressed_message_is_not_unpacked(parties: Parties, tmp_path: Path, name: str) -> None:
    """64 KiB would become 64 MiB; nobody is sent compressed messages, and so nobody may send any."""
    config, message = config_of(*FREE), bomb.bomb(64)

    async def act() -> list[str]:
        async with running(parties, config, tmp_path, 0) as run:
            return [await asyncio.to_thread(bomb.attack, run.port, parties.folder, name, message) for _ in range(2)]

    before = memory()
    assert all(asyncio.run(act()))
    assert memory() - before < 30


def test_a_stranger_with_a_certificate_is_refused_unread(
    parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It hears why before it has said a word."""
    config = config_of(*FREE)

    async def act() -> str:
        async with running(parties, config, tmp_path, 0) as run:
            return await asyncio.to_thread(talker.attack, run.port, parties.folder, "stranger", b"+" + bytes(200_000))

    began = time.monotonic()
    assert "'stranger' is not a device of this run" in asyncio.run(act())
    assert time.monotonic() - began < 4
    assert "in parts" not in caplog.text


def test_a_long_first_word_is_refused(parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A version of 100 kB, one of 1 kB, and a frame that announces more: none is taken, and each costs a short line."""
    config = config_of(*FREE)
    first = words(parties, config)[0]
    frames = (talker.long_version(first, 100_000), talker.long_version(first, 1000), b"+" + bytes((1 << 18) - 1))

    async def act() -> list[str]:
        async with running(parties, config, tmp_path, 0) as run:
            return [await asyncio.to_thread(talker.attack, run.port, parties.folder, WEST, each) for each in frames]

    said = asyncio.run(act())
    assert "at most 4096 bytes" in said[0]
    assert "could not be decoded" in said[1]
    assert "at most 4096 bytes" in said[2]
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


def test_many_empty_arrays_and_crumbs_are_refused_at_once(
    parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame of a megabyte, then a frame in parts of one byte: the loop is never blocked, and little is taken."""
    config, slowest = config_of(*FREE, "train.eval_every=1000", "train.rounds=5000"), 0.0

    async def watch() -> None:
        nonlocal slowest
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.monotonic() - began)

    async def act() -> int:
        async with running(parties, config, tmp_path, 3) as run:
            said = words(parties, config)
            await until(lambda: len(run.server._alignment.missing) == 1, 20)
            await asyncio.to_thread(empties.attack, run.port, parties.folder, WEST, said, 1000)  # gives its ids
            watching = asyncio.create_task(watch())
            await asyncio.to_thread(empties.attack, run.port, parties.folder, WEST, said, 1 << 20)
            sent = await asyncio.to_thread(crumbs.attack, run.port, parties.folder, WEST, said, 2)
            watching.cancel()
            return sent

    sent = asyncio.run(act())
    assert "arrays, got" in caplog.text or "could not be decoded" in caplog.text
    assert "in all parts but the last, got b'+' and 2 bytes" in caplog.text
    assert sent < 1 << 20
    assert slowest < 1.0
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


def test_of_one_device_that_comes_several_times_at_once_one_stays(
    parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dpzv")
    config = config_of(*FREE)

    async def act() -> tuple[int, list[int]]:
        async with running(parties, config, tmp_path, 0) as run:
            first = words(parties, config)[0]
            attack = (run.port, parties.folder, WEST, first, 4, 1.5)
            attacking = asyncio.create_task(asyncio.to_thread(again.attack, *attack))
            await asyncio.sleep(1.2)
            here = [m for m, peer in run.server._peers.here.items() if not peer.closed.is_set()]
            return await attacking, here

    alive, here = asyncio.run(act())
    assert here == [4]
    assert alive == 1


def test_refused_handshakes_are_counted_after_some(
    parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpzv.network import logs

    monkeypatch.setattr(logs, "SECONDS", 1.0)

    async def act() -> None:
        with refusals_logged():
            async with running(parties, config_of(*FREE), tmp_path, 0) as run:
                assert await asyncio.to_thread(stranger.knock, run.port, 40) == 40
                await asyncio.sleep(1.1)

    asyncio.run(act())
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum(line.startswith("a connection was refused") for line in lines) == logs.LINES
    assert any("30 more lines about a connection was refused" in line for line in lines)


def test_silent_connections_do_not_keep_devices_out(parties: Parties, tmp_path: Path) -> None:
    """While 1,200 silent connections from its own address come again and again, a device gets in at each try."""

    def welcomed(port: int) -> bool:
        link = Link(port, parties.folder, WEST)
        link.say(words(parties, config_of(*FREE))[0])
        link.pump(5, lambda: bool(link.messages))
        link.close()
        return bool(link.messages)

    async def act() -> list[bool]:
        async with running(parties, config_of(*FREE), tmp_path, 0) as run:
            command = [sys.executable, "-m", "tests.network.hostile.silent", str(run.port), "--seconds", "60"]
            crowd = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[2])
            try:
                await asyncio.sleep(1)
                return [await asyncio.to_thread(welcomed, run.port) for _ in range(8)]
            finally:
                crowd.kill()
                await crowd.wait()

    assert all(asyncio.run(act()))


def test_silent_connections_leave_descriptors_for_devices_and_checkpoints(tmp_path: Path) -> None:
    """A server that may have 256 descriptors, and 400 connections that say one byte and no more."""
    config = {
        "data": {"name": "made-up", "holdout": 0.4},
        "devices": {"embedding": 1},
        "train": {"rounds": 40, "B": 64, "eval_every": 20},
        "head": {"rule": "frozen", "refit_steps": 20},
        "network": {"devices": ["north", "east"]},
        "runtime": {"kind": "network", "threads": 1, "checkpoint_seconds": 0.1},
    }
    with town(tmp_path, config, 600) as run:
        run.start("server")
        pid = run.processes["server"].pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (200, 256))
        run.until(lambda: "listening" in run.log("server"))
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (256, 256)  # it takes what it may have
        command = [sys.executable, "-m", "tests.network.hostile.silent", str(run.port), "--word", "a"]
        crowd = subprocess.Popen([*command, "--number", "400", "--seconds", "60"], cwd=Path(__file__).parents[2])
        try:
            descriptors = Path(f"/proc/{pid}/fd")
            run.until(lambda: len(list(descriptors.iterdir())) > 50)
            for name in ("north", "east"):
                run.start(name)
            most, deadline = 0, time.monotonic() + 60
            while run.exit_code("server") is None:
                with suppress(OSError):
                    most = max(most, len(list(descriptors.iterdir())))
                time.sleep(0.02)
                assert time.monotonic() < deadline, run.logs()
        finally:
            crowd.kill()
            crowd.wait()
        assert run.exit_code("server") == 0, run.logs()
        assert most < 200
        assert run.summary()["rounds"] == 40
