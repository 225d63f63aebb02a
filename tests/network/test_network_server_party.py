"""What an operator does after the start: watch a long end, restart, end a run for good, restore a folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from federation import NAMES, Parties, config_of, serving
from safetensors.torch import load_file

from dpzv.config import Config
from dpzv.errors import PrivacyRefused
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.status import Status
from dpzv.privacy.lineage import end

LONG = config_of("head.rule=frozen", "train.rounds=2000", "train.eval_every=2000", "network.order=arrival")


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


async def play(parties: Parties, config: Config, out: Path, enough: Callable[[Status], bool]) -> Status:
    """Server and devices until it is enough; they are stopped then, and the last status of the server is returned."""
    listener, server = MemoryListener(NAMES), parties.server(config, out / "server")
    devices = [parties.device(config, m, out / name) for m, name in enumerate(NAMES, 1)]
    async with asyncio.timeout(60), serving(server, listener):
        running = [
            asyncio.create_task(device.run(listener.connector(name)))
            for device, name in zip(devices, NAMES, strict=True)
        ]
        while not enough(server.status()):
            await asyncio.sleep(0.01)
        for device in devices:
            device.stop()
        await asyncio.gather(*running)
        return server.status()


async def alone(parties: Parties, config: Config, out: Path) -> Status:
    """The status of a server that was started again, before any device has come."""
    server = parties.server(config, out / "server")
    async with asyncio.timeout(20), serving(server, MemoryListener(NAMES)) as task:
        while server.status().stage == "waiting for the parties" and not task.done():
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
        return server.status()


def test_a_server_shows_that_it_lives_while_it_fits_the_final_head(parties: Parties, tmp_path: Path) -> None:
    """A supervisor would else kill it there, and again after every restart; nothing else of the test takes seconds."""
    config = config_of("head.rule=frozen", "train.rounds=4", "head.refit_steps=300")
    listener, server, seen = MemoryListener(NAMES), parties.server(config, tmp_path / "server"), [0]

    async def watch() -> None:
        while True:
            seen[0] += server.status().stage == "final head"
            await asyncio.sleep(0.01)

    async def run() -> None:
        watching = asyncio.create_task(watch())
        async with asyncio.timeout(60), serving(server, listener) as finished:
            assert await parties.finish(config, tmp_path, finished, listener.connector)
        watching.cancel()

    asyncio.run(run())
    assert seen[0] >= 10


def test_a_server_that_was_started_again_shows_what_it_has_spent(parties: Parties, tmp_path: Path) -> None:
    asyncio.run(play(parties, LONG, tmp_path, lambda status: status.round > 40))
    found = asyncio.run(alone(parties, LONG, tmp_path))
    assert found.round > 40
    assert found.epsilon_spent
    assert found.epsilon is not None
    assert 0 < found.epsilon_spent < found.epsilon


def test_a_run_that_was_ended_for_good_is_refused_at_the_start(parties: Parties, tmp_path: Path) -> None:
    """Before a device comes, for none may come: the server would wait for batches that it must not answer."""
    asyncio.run(play(parties, LONG, tmp_path, lambda status: status.round > 40))
    end(tmp_path / "server")
    with pytest.raises(PrivacyRefused, match="was ended for good"):
        asyncio.run(alone(parties, LONG, tmp_path))


def test_a_server_warns_of_a_weak_delta_before_anything_is_spent(
    parties: Parties, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for a run: a server that is started again has been told."""
    weak = config_of("head.rule=frozen", "train.rounds=2000", "train.eval_every=2000", "privacy.delta_dp=0.01")
    caplog.set_level("INFO", "dpzv")
    for warned in (True, False):
        caplog.clear()
        asyncio.run(play(parties, weak, tmp_path, lambda status: status.round > 2))
        places = [i for i, record in enumerate(caplog.records) if "above 1/D" in record.getMessage()]
        rounds = [i for i, record in enumerate(caplog.records) if "round 0 of" in record.getMessage()]
        assert len(places) == len(rounds) == warned
        assert places < rounds or not warned


def test_a_device_goes_on_from_an_older_copy_of_its_folder(parties: Parties, tmp_path: Path) -> None:
    """It gets the releases that the copy lacks, and ends with the weights of a device that was never away."""
    config = config_of("head.rule=frozen", "train.rounds=120", "train.eval_every=120")
    whole, cut, name = tmp_path / "whole", tmp_path / "cut", NAMES[0]
    asyncio.run(parties.together(config, whole))
    asyncio.run(play(parties, config, cut, lambda status: status.round > 10))
    shutil.copytree(cut / name, tmp_path / "backup")
    asyncio.run(play(parties, config, cut, lambda status: status.round > 40))
    shutil.rmtree(cut / name)
    shutil.copytree(tmp_path / "backup", cut / name)
    asyncio.run(parties.together(config, cut))
    found, expected = (load_file(out / name / "weights" / "device-1.safetensors") for out in (cut, whole))
    assert all(torch.equal(found[key], expected[key]) for key in expected)
