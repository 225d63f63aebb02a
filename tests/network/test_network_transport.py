"""Every transport keeps the same contract; and over gRPC, long frames go in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from federation import NAMES, Parties
from hypothesis import given
from hypothesis import strategies as st

from dpzv.errors import PeerError
from dpzv.network import grpc_transport, memory_transport
from dpzv.network.grpc_transport import GrpcConnector, GrpcListener, GrpcStream
from dpzv.network.keyfiles import create_authority, issue_party
from dpzv.network.memory_transport import MemoryListener, MemoryStream
from dpzv.network.transport import Connector, LinkLost, Listener, Stream, next_frame
from dpzv.network.wire import PART

SIZES = (1, PART - 1, PART, PART + 1, 2 * PART, 5 * PART + 7)
FRAMES = [bytes([65 + i]) + b"+." * (size // 2) for i, size in enumerate(SIZES)]


class OverMemory:
    """The transport inside a process."""

    def __init__(self, _: Parties) -> None:
        self.listener = MemoryListener(NAMES)

    def connector(self, name: str) -> Connector:
        """How a device reaches the listener."""
        return self.listener.connector(name)

    stranger = connector


class OverTls:
    """The transport over networks, here on loopback."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self.listener = GrpcListener("127.0.0.1:0", parties.credentials("server"))

    def connector(self, name: str) -> Connector:
        """How a device reaches the listener."""
        return self._parties.tls_connector(name, self.listener.port)

    def stranger(self, name: str) -> Connector:
        """Somebody with a certificate of another authority."""
        other = Parties(self._parties.folder)
        other.folder = self._parties.folder / "elsewhere"
        if not other.folder.exists():
            create_authority(other.folder / "ca", 20)
            issue_party(other.folder / "ca", name, other.folder / name, None, 10)
        return GrpcConnector(f"localhost:{self.listener.port}", other.credentials(name), "server")


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


Kind = OverMemory | OverTls


@pytest.fixture(params=[OverMemory, OverTls])
def transport(request: pytest.FixtureRequest, parties: Parties) -> Kind:
    made: Kind = request.param(parties)
    return made


@asynccontextmanager
async def listening(listener: Listener, talk: Callable[[Stream], Awaitable[None]]) -> AsyncIterator[None]:
    """A server that does `talk`, for ten seconds at most."""
    await listener.start(talk)
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        await listener.stop(0)


async def use(connector: Connector) -> bytes | None:
    """Connect, say something, and wait for the answer."""
    async with connector.connect() as stream:
        await stream.write(b"hello?")
        return await stream.read()


async def until_lost(stream: Stream) -> None:
    """Write until it is known that nobody reads."""
    while True:
        await stream.write(b"x")
        await asyncio.sleep(0.01)


def test_frames_arrive_whole_and_in_order_both_ways(transport: Kind) -> None:
    """Short and long ones, under the names of both sides."""

    async def echo(stream: Stream) -> None:
        while (frame := await stream.read()) is not None:
            await stream.write(stream.peer_name.encode() + frame)

    async def speak(stream: Stream) -> None:
        for frame in FRAMES:
            await stream.write(frame)

    async def act() -> None:
        async with listening(transport.listener, echo), transport.connector("east").connect() as stream:
            assert stream.peer_name == "server"
            speaking = asyncio.create_task(speak(stream))  # a write may wait until the other side reads
            assert [await stream.read() for _ in FRAMES] == [b"east" + frame for frame in FRAMES]
            await speaking

    asyncio.run(act())


def test_devices_have_streams_of_their_own(transport: Kind) -> None:
    async def name(stream: Stream) -> None:
        await stream.read()
        await stream.write(stream.peer_name.encode())

    async def act() -> None:
        async with (
            listening(transport.listener, name),
            transport.connector("east").connect() as east,
            transport.connector("west").connect() as west,
        ):
            for stream in (west, east):
                await stream.write(b"who am I?")
            assert [await east.read(), await west.read()] == [b"east", b"west"]

    asyncio.run(act())


def test_a_device_that_has_closed_still_hears_the_server(transport: Kind) -> None:
    heard: list[bytes | None] = []

    async def answer(stream: Stream) -> None:
        heard.extend([await stream.read(), await stream.read(), await stream.read()])
        await stream.write(b"goodbye")

    async def act() -> None:
        async with listening(transport.listener, answer), transport.connector("east").connect() as stream:
            await stream.write(b"that is all")
            await stream.close()
            assert [await stream.read(), await stream.read(), await stream.read()] == [b"goodbye", None, None]
            with pytest.raises(LinkLost):
                await stream.write(b"one more thing")

    asyncio.run(act())
    assert heard == [b"that is all", None, None]


def test_a_server_that_has_said_all_ends_the_stream(transport: Kind) -> None:
    async def short(stream: Stream) -> None:
        await stream.read()
        await stream.write(b"no")

    async def act() -> None:
        async with listening(transport.listener, short), transport.connector("east").connect() as stream:
            await stream.write(b"may I?")
            assert [await stream.read(), await stream.read()] == [b"no", None]
            with pytest.raises(LinkLost):
                await until_lost(stream)

    asyncio.run(act())


def test_a_device_that_leaves_without_a_word_is_lost(transport: Kind) -> None:
    """Whoever talks to it finds that out, by the end of the stream, by an error, or by being cancelled."""
    gone: list[str] = []

    async def wait(stream: Stream) -> None:
        try:
            await stream.read()
            gone.append("ended" if await stream.read() is None else "spoke")
        except (LinkLost, asyncio.CancelledError):
            gone.append("lost")
        else:
            try:
                await until_lost(stream)
            except (LinkLost, asyncio.CancelledError):
                gone.append("cannot be written to")

    async def act() -> None:
        async with listening(transport.listener, wait):
            async with transport.connector("east").connect() as stream:
                await stream.write(b"here I am")
                await asyncio.sleep(0.1)
            while gone not in (["lost"], ["ended", "cannot be written to"]):
                await asyncio.sleep(0.01)

    asyncio.run(act())


def test_a_server_that_stops_is_lost(transport: Kind) -> None:
    async def silent(stream: Stream) -> None:
        await stream.read()
        await asyncio.Event().wait()

    async def act() -> None:
        async with listening(transport.listener, silent), transport.connector("east").connect() as stream:
            await stream.write(b"hello?")
            await transport.listener.stop(0)
            with suppress(LinkLost):
                assert await stream.read() is None
            with pytest.raises(LinkLost):
                await until_lost(stream)
            with pytest.raises(LinkLost):
                await use(transport.connector("east"))

    asyncio.run(act())


def test_a_stranger_is_not_let_in(transport: Kind) -> None:
    met: list[str] = []

    async def greet(stream: Stream) -> None:
        met.append(stream.peer_name)

    async def act() -> None:
        async with listening(transport.listener, greet):
            with pytest.raises(LinkLost):
                await use(transport.stranger("stranger"))

    asyncio.run(act())
    assert met == []


def test_a_frame_beyond_the_limit_is_refused(transport: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 3 * PART
    for module in (grpc_transport, memory_transport):
        monkeypatch.setattr(module, "MAX_FRAME", most)
    said: list[str] = []

    async def take(stream: Stream) -> None:
        try:
            for _ in range(2):
                frame = await stream.read()
                said.append(str(len(frame or b"")))
        except PeerError as error:
            said.append(str(error))

    async def act() -> None:
        async with listening(transport.listener, take), transport.connector("east").connect() as stream:
            await stream.write(bytes(most))
            with suppress(LinkLost):  # nobody waits for the rest of it
                await stream.write(bytes(most + 1))
            while len(said) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(act())
    assert said[0] == str(most)
    assert f"at most {most} bytes" in said[1]


@pytest.mark.parametrize("later", range(4))
def test_whoever_is_cancelled_as_a_frame_comes_is_cancelled(later: int) -> None:
    """A server that stops cancels those who wait for a device; none may go on as if nothing had happened."""

    async def act() -> None:
        here = MemoryStream("server")
        waiting = asyncio.create_task(next_frame(MemoryStream("east", here), 10))
        await asyncio.sleep(0)
        here._other._inbox.put_nowait(b"a frame")
        for _ in range(later):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            assert waiting.result() == b"a frame"

    asyncio.run(act())


def test_a_link_can_be_cut_in_memory() -> None:
    """What was said before still arrives; then both ends know, and a new link is as good as ever."""
    heard: list[object] = []

    async def listen(stream: Stream) -> None:
        try:
            while (frame := await stream.read()) is not None:
                heard.append(frame)
        except LinkLost as error:
            heard.append(str(error))

    async def act() -> None:
        listener = MemoryListener(NAMES)
        async with listening(listener, listen):
            async with listener.connector("east").connect() as east, listener.connector("west").connect() as west:
                await east.write(b"before")
                listener.cut("east")
                for use in (east.read(), east.write(b"after"), east.close()):
                    with pytest.raises(LinkLost, match="cut"):
                        await use
                await west.write(b"unharmed")
            async with listener.connector("east").connect() as east:
                await east.write(b"again")
            while len(heard) < 4:
                await asyncio.sleep(0.001)

    asyncio.run(act())
    assert heard == [b"before", "the link was cut", b"unharmed", b"again"]


WHOLE = b"+" + bytes(PART - 1)
"""A part that is not the last of its frame."""


class Line:
    """What is written is what is read."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)

    async def read(self) -> object:
        return self.messages.pop(0) if self.messages else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.messages.append(message)


def carried(*frames: bytes) -> tuple[list[object], list[int]]:
    """The frames as they arrive, and the sizes of the messages on the way."""

    async def act() -> tuple[list[object], list[int]]:
        line = Line()
        for frame in frames:
            await GrpcStream(line).write(frame)
        sizes = [len(message) for message in line.messages]
        return [await GrpcStream(line).read() for _ in frames], sizes

    return asyncio.run(act())


@pytest.mark.parametrize("size", [1, PART - 1, PART, PART + 1, 2 * PART - 2, 2 * PART - 1, 2 * PART, 10 * PART + 7])
@pytest.mark.parametrize("filled", [b"+", b".", b"m"], ids=["more", "last", "message"])
def test_no_message_is_longer_than_a_part(size: int, filled: bytes) -> None:
    """Whatever its bytes are, also those that mark parts, between two short frames."""
    frames = (b"c1", b"m" + filled * (size - 1), b"c2")
    arrived, sizes = carried(*frames)
    assert arrived == list(frames)
    assert max(sizes) <= PART
    assert len(sizes) == 2 + (1 if size <= PART else -(-size // (PART - 1)))


@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda body: b"m" + body), max_size=5))
def test_frames_arrive_as_they_were(frames: list[bytes]) -> None:
    whole = PART
    grpc_transport.PART = 8
    try:
        arrived, sizes = carried(*frames)
    finally:
        grpc_transport.PART = whole
    assert arrived == frames
    assert all(size <= 8 for size in sizes)


@pytest.mark.parametrize(
    "messages",
    [(WHOLE, b"mcd"), (WHOLE, b""), (WHOLE, WHOLE, b"c"), (b"+x",), (WHOLE, b"+x"), (b"+",), (WHOLE + b"x",)],
    ids=["whole", "empty", "control", "crumb", "crumb later", "nothing", "more than a part"],
)
def test_a_frame_that_breaks_off_is_refused(messages: tuple[bytes, ...]) -> None:
    with pytest.raises(PeerError, match="in parts"):
        asyncio.run(GrpcStream(Line(*messages)).read())


def test_a_stream_that_ends_within_a_frame_has_ended() -> None:
    assert asyncio.run(GrpcStream(Line(WHOLE, WHOLE)).read()) is None


def test_parts_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_transport, "MAX_FRAME", 3 * PART)
    line = Line(*[WHOLE] * 50)
    with pytest.raises(PeerError, match=f"at most {3 * PART} bytes"):
        asyncio.run(GrpcStream(line).read())
    assert len(line.messages) == 46


def test_a_frame_may_be_as_long_as_the_reader_allows() -> None:
    for most, messages in ((10, [b"m" * 11]), (PART, [WHOLE, WHOLE, b".x"]), (0, [b"c"])):
        stream = GrpcStream(Line(*messages))
        stream.most = most
        with pytest.raises(PeerError, match=f"at most {most} bytes here"):
            asyncio.run(stream.read())
