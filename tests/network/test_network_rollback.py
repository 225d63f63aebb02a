"""A server that is put back to an old copy of its folder: its devices' receipts show it, and it stops for good."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import NAMES, Parties, config_of, hello, serving

from dpzv.config import Config
from dpzv.errors import PeerRefused, PrivacyRefused
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.server_party import ServerParty
from dpzv.network.transport import next_frame
from dpzv.network.wire import Stop, Welcome, pack, unpack
from dpzv.privacy.ledger_checks import Receipts
from dpzv.privacy.statement import read_ledger, spent

ROUNDS, TURNS = 96, 24
"""Of the whole run, and of each of its four devices."""
SECRET = config_of("head.rule=frozen", f"train.rounds={ROUNDS}", "noise.source=exact", "privacy.epsilon=8")
SEEDED = config_of("head.rule=frozen", f"train.rounds={ROUNDS}")


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


async def part(
    parties: Parties, config: Config, out: Path, until: int, past: Sequence[int] = ()
) -> dict[str, Any] | None:
    """All parties until round `until`, then the server and the devices are stopped; the summary, if it has ended.

    It goes on until device m has had more than `past[m - 1]` turns. Many rounds pass between two looks, so a run may be
    far beyond `until` when it is stopped.
    """
    server, listener = parties.server(config, out / "server"), MemoryListener(NAMES)
    devices = [parties.device(config, m, out / name) for m, name in enumerate(NAMES, 1)]
    async with serving(server, listener) as finished:
        running = [
            asyncio.create_task(device.run(listener.connector(name)))
            for device, name in zip(devices, NAMES, strict=True)
        ]
        try:
            async with asyncio.timeout(40):
                while not finished.done() and (
                    server._run is None
                    or server._run.server.t < until
                    or any(device.conversation.position <= turns for device, turns in zip(devices, past, strict=False))
                ):
                    await asyncio.sleep(0.001)
                if not finished.done():
                    server.stop()
                return await finished
        finally:
            for device in devices:
                device.stop()
            await asyncio.wait(running, timeout=10)


def put_back(
    parties: Parties, config: Config, out: Path, machine: pytest.MonkeyPatch, *, kept: tuple[str, ...] = NAMES
) -> None:
    """Run on for a while, then put the server's folder back to how it was before; only devices `kept` keep theirs."""
    asyncio.run(part(parties, config, out, 8))
    turns = read_ledger(out / "server").turns
    assert all(turns[m] < TURNS for m in turns), "the run ended before its folder was copied"
    shutil.copytree(out / "server", out / "backup")
    for name in NAMES:
        if name not in kept:
            shutil.copytree(out / name, out / f"{name}-backup")
    asyncio.run(part(parties, config, out, 16, [turns[m] for m in sorted(turns)]))
    for name in ("server", *(name for name in NAMES if name not in kept)):
        shutil.rmtree(out / name)
        shutil.move(out / ("backup" if name == "server" else f"{name}-backup"), out / name)
    machine.setenv("XDG_STATE_HOME", str(out / "of another machine"))


@pytest.mark.parametrize("kept", [NAMES, NAMES[:1]], ids=["all devices", "one device"])
def test_a_server_that_was_put_back_stops_for_good(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: tuple[str, ...]
) -> None:
    """One device that remembers is enough, though the others were put back with the server."""
    put_back(parties, SECRET, tmp_path, monkeypatch, kept=kept)
    with pytest.raises(PrivacyRefused, match="the ledger is an old copy") as refused:
        asyncio.run(part(parties, SECRET, tmp_path, ROUNDS))
    assert refused.value.exit_code == 4
    with pytest.raises(PrivacyRefused, match="a device showed that it is an old copy"):  # whoever comes first this time
        asyncio.run(part(parties, SECRET, tmp_path, ROUNDS))
    with pytest.raises(PrivacyRefused, match="old copy"):  # nor can it be counted as what was spent
        spent([tmp_path / "server"])


def test_honest_devices_are_not_blamed(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_back(parties, SECRET, tmp_path, monkeypatch)
    caplog.set_level("INFO", "dpzv.device")
    with pytest.raises(PrivacyRefused):
        asyncio.run(part(parties, SECRET, tmp_path, ROUNDS))
    told = [record.getMessage() for record in caplog.records if "the server says goodbye" in record.getMessage()]
    assert any("the server's ledger is an old copy" in line for line in told)
    assert not any("device" in line for line in told)


def test_a_receipt_that_was_made_up_stops_nobody_else(parties: Parties, tmp_path: Path) -> None:
    """A device cannot claim releases that it was not sent, nor use the receipts of another."""
    asyncio.run(part(parties, SECRET, tmp_path, 8))
    other = DeviceFolder(tmp_path / NAMES[1]).state()
    run_id, hashes = other.run_id, parties.features[0].hashes.tobytes()
    own = Receipts(run_id, bytes(32)).make(1, 8, 40)

    async def shown(listener: MemoryListener, position: int, t: int, receipt: bytes) -> str:
        async with listener.connector(NAMES[0]).connect() as stream:
            digests = parties.features[0].digests()
            await stream.write(pack(hello(SECRET, run_id, position, hashes, digests, t=t, receipt=receipt)))
            while not isinstance(message := unpack(None, await next_frame(stream, 20)), Stop):
                assert isinstance(message, Welcome)
            return message.reason

    async def knock() -> None:
        listener = MemoryListener(NAMES)
        async with serving(parties.server(SECRET, tmp_path / "server"), listener) as finished:
            for position, t, receipt in (
                (9, 40, own),
                (other.position, other.t, other.receipt),
                (2, 5, b""),
                (-1, -1, b""),
            ):
                said = await shown(listener, position, t, receipt)
                assert f"device 1 is at batch {position} and must show the receipt" in said
            assert not finished.done()

    asyncio.run(asyncio.wait_for(knock(), 60))
    summary = asyncio.run(part(parties, SECRET, tmp_path, ROUNDS))
    assert summary is not None
    assert summary["rounds"] == ROUNDS


def test_a_device_that_is_sent_its_releases_again_gets_its_receipts_again(parties: Parties, tmp_path: Path) -> None:
    asyncio.run(part(parties, SECRET, tmp_path, 8))
    before = DeviceFolder(tmp_path / NAMES[2]).state()
    assert before.position > 0
    assert len(before.receipt) == 16
    shutil.rmtree(tmp_path / NAMES[2])
    assert asyncio.run(part(parties, SECRET, tmp_path, ROUNDS)) is not None
    states = [DeviceFolder(tmp_path / name).state() for name in NAMES]
    ledger = tmp_path / "server" / "ledger.sqlite"
    key = key_of(ledger)
    receipts = Receipts(read_ledger(ledger).run_id, key)
    for m, state in enumerate(states, 1):
        assert receipts.is_valid(state.receipt, m, state.position - 1, state.t)
        assert state.position == TURNS


def test_a_killed_server_with_simulated_noise_refuses_devices_but_is_not_condemned(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger may be behind by honest accident, and nothing is claimed."""
    put_back(parties, SEEDED, tmp_path, monkeypatch)

    async def refused() -> ServerParty:
        server, listener = parties.server(SEEDED, tmp_path / "server"), MemoryListener(NAMES)
        device = parties.device(SEEDED, 1, tmp_path / NAMES[0])
        async with serving(server, listener):
            with pytest.raises(PeerRefused, match="with simulated noise a server that is killed"):
                await device.run(listener.connector(NAMES[0]))
        return server

    server = asyncio.run(asyncio.wait_for(refused(), 30))
    assert server._failure is None
    assert read_ledger(tmp_path / "server").releases >= 8


def key_of(path: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found: bytes = connection.execute("SELECT value FROM meta WHERE key = 'receipt_key'").fetchone()[0]
    return found


def test_releases_that_are_sent_again_are_counted_again(parties: Parties, tmp_path: Path) -> None:
    """A device that lost its folder hears all its releases a second time, and those bytes were sent."""
    quiet = asyncio.run(part(parties, SEEDED, tmp_path / "quiet", ROUNDS))
    assert quiet is not None
    each, rest = divmod(quiet["bytes_down"], ROUNDS)
    assert rest == 0
    assert asyncio.run(part(parties, SEEDED, tmp_path, 8)) is None
    shutil.rmtree(tmp_path / NAMES[0])
    turns = read_ledger(tmp_path / "server").turns
    again = turns[1]
    for m, name in list(enumerate(NAMES, 1))[1:]:
        again += turns[m] - DeviceFolder(tmp_path / name).state().position
    found = asyncio.run(part(parties, SEEDED, tmp_path, ROUNDS))
    assert found is not None
    assert found["bytes_down"] == (ROUNDS + again) * each
    numbers = np.dtype(np.float64).itemsize
    assert found["payload_bytes"] == quiet["payload_bytes"] + again * numbers
