"""What a party does when something goes wrong for good: who is told what, and who ends with which code."""

from __future__ import annotations

import asyncio

import pytest
from federation import NAMES, Parties, config_of

from dpzv.network.transport import LinkLost, Stream
from dpzv.network.wire import hello, pack

CONFIG = config_of("head.rule=frozen", "train.rounds=8")


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


def test_an_unexpected_error_reaches_a_device_as_one_constant_sentence(
    parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    """Over gRPC the text of an exception would be sent word by word; here it names a label."""

    async def broken(stream: Stream) -> None:
        await stream.read()
        raise ValueError("record-7 has label 'ill'")

    async def heard() -> str:
        listener = parties.tls_listener()
        await listener.start(broken)
        try:
            async with parties.tls_connector(NAMES[0], listener.port).connect() as stream:
                await stream.write(pack(hello(CONFIG, "", 0, b"")))
                with pytest.raises(LinkLost) as lost:
                    await stream.read()
                return str(lost.value)
        finally:
            await listener.stop(1)

    said = asyncio.run(heard())
    assert said == "INTERNAL: the server had an internal error; its log says more"
    assert "record-7 has label 'ill'" in caplog.text
