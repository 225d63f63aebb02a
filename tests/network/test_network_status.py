"""What the server's operator and a supervisor see: a status with its age, who waits for what, and signs of life."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from federation import NAMES, Parties, config_of, serving
from puppet import Puppet
from town import write_parties
from typer.testing import CliRunner, Result

from dpzv.cli.main import app
from dpzv.durable import holding
from dpzv.errors import ConfigError
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.party import load_party
from dpzv.network.serving import serve
from dpzv.network.status import DeviceStatus, Status, read_status, serve_metrics, write_status
from dpzv.runtime.run_folder import RunFolder

CONFIG = config_of("head.rule=frozen", "train.rounds=8")
TOWN = {
    "data": {"name": "made-up", "holdout": 0.4},
    "train": {"rounds": 8, "B": 256},
    "network": {"devices": ["north"]},
    "runtime": {"kind": "network"},
}


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


async def until(reached: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not reached():
            await asyncio.sleep(0.02)


def test_a_status_that_could_not_be_written_once_is_written_again(parties: Parties, tmp_path: Path) -> None:
    file = tmp_path / "server" / "status.json"

    async def run() -> None:
        async with serving(parties.server(CONFIG, tmp_path / "server"), MemoryListener(NAMES)):
            await until(file.exists)
            assert read_status(file.parent).waits == "the ids of north, east, south, west"
            file.unlink()
            (file / "in its way").mkdir(parents=True)
            await asyncio.sleep(1.5)
            shutil.rmtree(file)
            await until(file.is_file, 5)

    asyncio.run(run())


def status(when: float, stage: str = "rounds") -> Status:
    devices = (DeviceStatus("north", False, 3, 7, refused="it has other record ids"),)
    return Status(when, stage, 9, 90, 10, 10, 0.5, 1.0, 2.0, devices, "a batch of north")


def shown(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["server", str(folder / "server" / "server.toml"), "--status", *options])


def test_an_old_status_says_so_and_has_an_exit_code(tmp_path: Path) -> None:
    write_parties(tmp_path, TOWN, 600, 1)
    out = tmp_path / "server" / "out"
    write_status(out, status(time.time()))
    fresh = shown(tmp_path)
    assert fresh.exit_code == 0
    for words in ("as of 0 s ago", "waiting for a batch of north", "refused: it has other record ids"):
        assert words in fresh.output
    write_status(out, status(time.time() - 60))
    for old in (shown(tmp_path), shown(tmp_path, "--json")):
        assert old.exit_code == 5
    assert "as of 60 s ago" in shown(tmp_path).output
    assert "stopped or stuck" in shown(tmp_path).output
    write_status(out, status(time.time() - 60, "finished"))
    assert shown(tmp_path).exit_code == 0
    (out / "status.json").write_text(json.dumps({"time": "noon"}))
    damaged = shown(tmp_path).exception
    assert "is not the status of a run" in str(damaged)


def test_a_run_has_one_server(tmp_path: Path) -> None:
    """A second one, on another port, would write its own status into the same folder."""
    write_parties(tmp_path, TOWN, 600, 0)
    own = load_party(tmp_path / "server" / "server.toml")
    folder = RunFolder.of_run(own.out, own.config)
    with holding(own.out, "the folder of a run"), pytest.raises(ConfigError, match="in use by another process"):
        asyncio.run(serve(own, folder, lambda _: None))


def test_a_supervisor_hears_when_the_server_is_ready_alive_and_stopping(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        async def run() -> None:
            async with serving(parties.server(CONFIG, tmp_path / "server"), MemoryListener(NAMES)):
                await asyncio.sleep(1.3)

        asyncio.run(run())
        heard = []
        while True:
            try:
                heard.append(systemd.recv(100).decode())
            except BlockingIOError:
                break
    assert heard[0] == "READY=1"
    assert heard[-1] == "STOPPING=1"
    assert heard.count("WATCHDOG=1") >= 2


def test_by_default_a_device_that_is_away_for_good_holds_the_run_up_and_is_named(
    parties: Parties, tmp_path: Path
) -> None:
    """Without a bound the others would play all their rounds, and nobody would see that one device is missing."""
    config = config_of("head.rule=frozen", "train.rounds=1200", "network.order=arrival", "train.eval_every=2000")
    listener, server = MemoryListener(NAMES), parties.server(config, tmp_path / "server")
    puppet = Puppet(parties, config, 4)

    async def run() -> Status:
        async with serving(server, listener):
            here = [
                asyncio.create_task(parties.device(config, m, tmp_path / name).run(listener.connector(name)))
                for m, name in enumerate(NAMES[:3], 1)
            ]
            here.append(asyncio.create_task(puppet.run(listener)))
            await until(lambda: server.status().round > 8)
            here[3].cancel()
            t = -1
            while t != server.status().round:
                t = server.status().round
                await asyncio.sleep(1)
            found = server.status()
            for task in here:
                task.cancel()
            await asyncio.gather(*here, return_exceptions=True)
            return found

    found = asyncio.run(asyncio.wait_for(run(), 60))
    assert 104 <= found.devices[3].rounds_behind <= 110
    assert found.waits == "a batch of west"


def test_a_first_line_without_an_end_is_answered_by_closing(caplog: pytest.LogCaptureFixture) -> None:
    async def asked() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        async with await serve_metrics(f"127.0.0.1:{port}", lambda: status(time.time())):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x" * 200_000)
            try:
                return await asyncio.wait_for(reader.read(), 10)
            except ConnectionError:
                return b""
            finally:
                writer.close()

    assert asyncio.run(asked()) == b""
    assert not caplog.records  # an error that nobody catches is logged with a traceback
