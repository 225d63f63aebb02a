"""Nothing but the releases depends on labels: everything a device receives is recorded under two sets of labels."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
from federation import NAMES, Parties, config_of

from dpzv.network.credentials import channel_credentials, server_credentials
from dpzv.network.device_party import DeviceParty
from dpzv.network.link import Stream
from dpzv.network.wire import Control, Welcome
from dpzv.protocol.messages import Message, Release


class Recording(DeviceParty):
    """A device that keeps what it is told."""

    heard: list[Control | Message]

    async def _read(self, stream: Stream) -> Control | Message:
        message = await super()._read(stream)
        self.heard.append(message)
        return message


async def heard(parties: Parties, out: Path) -> list[list[object]]:
    """What each device hears in a whole run; releases as their place only, and without the run's random name."""
    config = config_of("head.rule=dp-sgd", "head.steps=20")
    host = parties.host(config, out / "server")
    serving = asyncio.create_task(host.run("127.0.0.1:0", server_credentials(parties.credentials("server"))))
    while not host.port:
        await asyncio.sleep(0.01)
    guests, tasks = [], []
    for m, name in enumerate(NAMES, 1):
        guest = Recording(config, parties.features[m - 1], out / name)
        guest.heard = []
        make = lambda name=name: channel_credentials(parties.credentials(name))  # noqa: E731
        guests.append(guest)
        tasks.append(asyncio.create_task(guest.run(f"127.0.0.1:{host.port}", make, server="server")))
    assert await asyncio.wait_for(serving, 60) is not None
    await asyncio.wait_for(asyncio.gather(*tasks), 30)

    def plain(message: Control | Message) -> object:
        if isinstance(message, Release):
            return ("release", message.t, message.m, message.position, len(message.Delta))
        return msgspec.structs.replace(message, run_id="") if isinstance(message, Welcome) else message

    return [[plain(message) for message in guest.heard] for guest in guests]


@pytest.mark.parametrize("change", ["shuffled", "flipped"])
def test_what_devices_hear_is_the_same_whatever_the_labels(tmp_path: Path, change: str) -> None:
    parties = Parties.made(tmp_path / "keys")
    first = asyncio.run(heard(parties, tmp_path / "one"))
    y = parties.labels.y
    other = np.random.default_rng(1).permutation(y) if change == "shuffled" else 9 - y
    parties.labels = dataclasses.replace(parties.labels, y=other)
    second = asyncio.run(heard(parties, tmp_path / "two"))
    assert first == second
    assert sum(isinstance(message, tuple) for messages in first for message in messages) == 40
