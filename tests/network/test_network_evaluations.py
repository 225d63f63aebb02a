"""A device that does not send its test rows, or sends others than it was asked for, is closed; the run goes on."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import pytest
from federation import NAMES, Parties, config_of, serving
from puppet import Puppet

from dpzv.network import evaluations
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.wire import Done, pack

CONFIG = config_of("head.rule=frozen", "train.rounds=8", "train.eval_every=4")


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


def start(parties: Parties, out: Path, listener: MemoryListener, puppet: Puppet) -> list[asyncio.Task[None]]:
    """Three honest devices, and a fourth that is the puppet."""
    honest = [parties.device(CONFIG, m, out / NAMES[m - 1]).run(listener.connector(NAMES[m - 1])) for m in (1, 2, 3)]
    return [asyncio.create_task(work) for work in (*honest, puppet.run(listener))]


async def together(parties: Parties, out: Path, puppet: Puppet) -> dict[str, Any]:
    """The summary of their run."""
    listener = MemoryListener(NAMES)
    async with serving(parties.server(CONFIG, out / "server"), listener) as finished:
        tasks = start(parties, out, listener, puppet)
        summary = await asyncio.wait_for(finished, 40)
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert summary is not None
    assert [one["rounds"] for one in summary["participation"]] == [2, 2, 2, 2]
    return summary


@pytest.mark.parametrize("how", ["not at all", "drop by drop"])
def test_a_device_that_does_not_send_its_test_rows_is_named_and_closed_and_the_run_goes_on(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Drop by drop every frame is progress, but so little that one evaluation would take half a minute."""
    monkeypatch.setattr(evaluations, "LONGEST", 0.3)
    monkeypatch.setattr(evaluations, "SHORTEST", 0.3)
    drops = lambda puppet, _: [puppet.part(i, i + 1) for i in range(puppet.D_test)]  # noqa: E731
    puppet = Puppet(parties, CONFIG, 4, drops if how == "drop by drop" else lambda *_: [])
    puppet.gap = 0.1
    summary = asyncio.run(together(parties, tmp_path, puppet))
    assert [one["tested"] for one in summary["participation"]] == [True, True, True, False]
    assert puppet.evaluations >= 2
    if how == "not at all":
        assert "did not send its test embeddings in time" in puppet.stops[0].reason
    assert caplog.text.count("device 4 (west) was asked for") == puppet.evaluations


@pytest.mark.parametrize("rows", ["overlapping", "missing", "twice"])
def test_other_rows_than_asked_for_are_refused(parties: Parties, tmp_path: Path, rows: str) -> None:
    def evaluate(puppet: Puppet, number: int) -> list[bytes]:
        if number != 2:
            return puppet.test_rows()
        half = puppet.D_test // 2
        wrong = {
            "overlapping": [puppet.part(0, half, 9.0), puppet.part(0, puppet.D_test - half, 9.0)],
            "missing": [puppet.part(half, puppet.D_test, 9.0), puppet.part(half, puppet.D_test, 9.0)],
            "twice": [puppet.part(0, puppet.D_test), puppet.part(0, puppet.D_test)],
        }
        return [*wrong[rows], pack(Done("evaluate"))]

    puppet = Puppet(parties, CONFIG, 4, evaluate)
    summary = asyncio.run(together(parties, tmp_path, puppet))
    assert "must send test row" in puppet.stops[0].reason or "may send test rows" in puppet.stops[0].reason
    assert all(one["tested"] for one in summary["participation"])


def test_a_server_that_waits_for_test_rows_stops_at_once(parties: Parties, tmp_path: Path) -> None:
    async def stopped() -> float:
        listener, puppet = MemoryListener(NAMES), Puppet(parties, CONFIG, 4, lambda *_: [])
        server = parties.server(CONFIG, tmp_path / "server")
        async with serving(server, listener) as finished:
            tasks = start(parties, tmp_path, listener, puppet)
            while not puppet.evaluations:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            began = time.monotonic()
            server.stop()
            assert await asyncio.wait_for(finished, 30) is None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return time.monotonic() - began

    assert asyncio.run(stopped()) < 5


def test_rows_beyond_the_bound_are_told_of_and_the_result_is_finite(
    parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the device and a count, and no record."""
    summary = asyncio.run(
        together(parties, tmp_path, Puppet(parties, CONFIG, 4, lambda puppet, _: puppet.test_rows(3e38)))
    )
    assert math.isfinite(summary["test_loss"])
    assert "device 4 (west): 249 of 249 test embeddings are not finite or beyond 65504" in caplog.text
