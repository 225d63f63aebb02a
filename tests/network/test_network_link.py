"""Frames over a stream: long ones go in parts and arrive whole, and a peer that cheats with parts is closed."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv.errors import PeerError
from dpzv.network import link
from dpzv.network.link import PART, Frames


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
            await Frames(line).write(frame)
        sizes = [len(message) for message in line.messages]
        return [await Frames(line).read() for _ in frames], sizes

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
    link.PART = 8
    try:
        arrived, sizes = carried(*frames)
    finally:
        link.PART = whole
    assert arrived == frames
    assert all(size <= 8 for size in sizes)


@pytest.mark.parametrize(
    "messages", [(b"+ab", b"mcd"), (b"+ab", b""), (b"+ab", b"+cd", b"c")], ids=["whole", "empty", "control"]
)
def test_a_frame_that_breaks_off_is_refused(messages: tuple[bytes, ...]) -> None:
    with pytest.raises(PeerError, match="in parts"):
        asyncio.run(Frames(Line(*messages)).read())


def test_a_stream_that_ends_within_a_frame_has_ended() -> None:
    assert asyncio.run(Frames(Line(b"+ab", b"+cd")).read()) is grpc.aio.EOF


def test_parts_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_FRAME", 100)
    with pytest.raises(PeerError, match="100 bytes"):
        asyncio.run(Frames(Line(*[b"+" + bytes(9)] * 50)).read())
