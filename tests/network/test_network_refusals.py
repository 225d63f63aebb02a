"""Who is refused, and why. Wrong certificates: `test_network_identity.py`; here: wrong words of right people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from federation import NAMES, Parties, config_of

from dpzv.network.credentials import channel_credentials, server_credentials
from dpzv.network.link import open_stream
from dpzv.network.wire import Ids, Rows, Stop, Welcome, hello, pack, pack_message, unpack
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings

CONFIG = config_of("head.rule=frozen", "network.order=arrival", "train.rounds=8")
CODEC = Codec("float32", 1e-3)
WIDTH, B = 8, 256


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


def embeddings(m: int, position: int, rows: int, arrays: int = 2) -> bytes:
    return pack_message(CODEC, Embeddings(m, position, (torch.zeros(rows, WIDTH),) * arrays))


async def said(parties: Parties, port: int, name: str, frames: list[bytes]) -> str:
    """Connect as `name`, say `frames` as soon as the rows are known, and return the server's goodbye."""
    channel, stream = open_stream(f"127.0.0.1:{port}", channel_credentials(parties.credentials(name)), "server")
    m = NAMES.index(name)
    await stream.write(pack(hello(CONFIG, "", 0, parties.features[m].hashes.tobytes())))
    try:
        while True:
            message = unpack(CODEC, await asyncio.wait_for(stream.read(), 30))
            if isinstance(message, Stop):
                return message.reason
            if isinstance(message, Welcome) and message.needs_ids:
                await stream.write(pack(Ids(parties.features[m].hashes.tobytes())))
            if isinstance(message, Rows):
                for frame in frames:
                    await stream.write(frame)
    finally:
        await channel.close()


async def refused(parties: Parties, out: Path, act: Callable[[int], object]) -> str:
    """What the server says to one who misbehaves, while the true devices finish their run."""
    host = parties.host(CONFIG, out / "server")
    serving = asyncio.create_task(host.run("127.0.0.1:0", server_credentials(parties.credentials("server"))))
    while not host.port:
        await asyncio.sleep(0.01)
    others = []
    for m in (1, 2, 3):
        guest = parties.guest(CONFIG, m, out / NAMES[m - 1])
        make = lambda m=m: channel_credentials(parties.credentials(NAMES[m - 1]))  # noqa: E731
        others.append(asyncio.create_task(guest.run(f"127.0.0.1:{host.port}", make, server="server")))
    reason = await act(host.port)  # type: ignore[misc]
    last = parties.guest(CONFIG, 4, out / NAMES[3])
    make = lambda: channel_credentials(parties.credentials(NAMES[3]))  # noqa: E731
    others.append(asyncio.create_task(last.run(f"127.0.0.1:{host.port}", make, server="server")))
    summary = await asyncio.wait_for(serving, 60)
    assert summary is not None
    assert summary["rounds"] == 8
    await asyncio.wait_for(asyncio.gather(*others), 30)
    return str(reason)


@pytest.mark.parametrize(
    ("frames", "word"),
    [
        ([b"nonsense"], "a frame begins with"),
        ([b"m\x93"], "could not be decoded"),
        ([embeddings(4, 0, 1)], "out of turn"),  # before the rounds began
        ([embeddings(1, 0, B)], "spoke for device 1"),
        ([pack(Welcome(4, "", "train", False))], "out of turn"),
        ([pack(Ids(bytes(32)))], "out of turn"),
    ],
    ids=["noise", "cut", "early", "another's name", "the server's words", "ids again"],
)
def test_a_device_that_misbehaves_is_closed_with_a_reason(
    parties: Parties, tmp_path: Path, frames: list[bytes], word: str
) -> None:
    reason = asyncio.run(refused(parties, tmp_path, lambda port: said(parties, port, NAMES[3], frames)))
    assert word in reason


def test_another_configuration_is_refused(parties: Parties, tmp_path: Path) -> None:
    other = config_of("head.rule=frozen", "train.rounds=9")

    async def act(port: int) -> str:
        channel, stream = open_stream(f"127.0.0.1:{port}", channel_credentials(parties.credentials(NAMES[3])), "server")
        await stream.write(pack(hello(other, "", 0, b"")))
        message = unpack(None, await stream.read())
        await channel.close()
        assert isinstance(message, Stop)
        return message.reason

    assert "another run configuration" in asyncio.run(refused(parties, tmp_path, act))
