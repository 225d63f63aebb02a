"""In the order of arrival every device has its share of the rounds: fast ones wait at the end, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from federation import NAMES, Parties, config_of, serving

from dpzv.network.memory_transport import MemoryListener
from dpzv.network.server_party import ServerParty
from dpzv.privacy.statement import read_ledger

T = 202
CONFIG = config_of(
    "network.order=arrival", "network.max_delay=0", "head.rule=frozen", f"train.rounds={T}", "train.eval_every=1000"
)


async def without_the_last(parties: Parties, out: Path) -> list[int]:
    """The rounds of each device when the last device leaves after the first fill; then everybody is stopped."""
    server, listener = parties.server(CONFIG, out / "server"), MemoryListener(NAMES)
    async with serving(server, listener):
        devices = [parties.device(CONFIG, m, out / name) for m, name in enumerate(NAMES, 1)]
        tasks = [
            asyncio.create_task(device.run(listener.connector(name)))
            for device, name in zip(devices, NAMES, strict=True)
        ]
        await until(lambda: bool(server._run) and server._run.begun)
        devices[-1].stop()
        await until(lambda: sum(rounds(server)[:3]) >= 152)
        await asyncio.sleep(0.3)  # enough for all rounds that may still begin
        found = rounds(server)
        server.stop()
        for device in devices:
            device.stop()
        await asyncio.wait(tasks, timeout=10)
    return found


def rounds(server: ServerParty) -> list[int]:
    """How many rounds each device has had."""
    return list(server._run.server.positions) if server._run else []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_rounds_of_a_device_that_is_away_wait_for_it(tmp_path: Path) -> None:
    parties = Parties.made(tmp_path / "parties")
    found = asyncio.run(without_the_last(parties, tmp_path / "out"))
    assert found[-1] < 50  # it was away
    assert sorted(found[:3]) == [50, 51, 51]  # all rounds that are not its own
    summary = asyncio.run(parties.together(CONFIG, tmp_path / "out"))
    assert summary is not None
    assert summary["rounds"] == T
    assert sorted(read_ledger(tmp_path / "out" / "server").turns.values()) == [50, 50, 51, 51]
