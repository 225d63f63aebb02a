"""gRPC streams of frames, and the options that make a dead or frozen peer known within seconds.

The pings that find a dead peer wait behind whatever is already on its way. So little may be on its way at once: a long
frame is sent in parts, and gRPC is kept from widening its window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc

from dpzv.errors import PeerError
from dpzv.network.credentials import peer_option
from dpzv.protocol.codec import MAX_FRAME

__all__ = [
    "GOODBYE_SECONDS",
    "IDS_SECONDS",
    "LONGEST_PAUSE",
    "LOST",
    "METHOD",
    "PART",
    "Frames",
    "Stream",
    "heard_out",
    "listen",
    "open_stream",
]

METHOD = "/dpzv.Session/Run"

LOST = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError, ConnectionError, TimeoutError)
"""What reading from or writing to a stream raises when the other side is gone."""

LONGEST_PAUSE = 30.0
"""Seconds between two attempts of a device to connect, at most."""

IDS_SECONDS = 600.0
"""How long a device may take to send its ids: a million over a slow line."""

GOODBYE_SECONDS = 5.0
"""How long a closed device may take to finish its sentence and say goodbye."""

PART = 1 << 18
"""Bytes of the longest message that is sent; a longer frame goes in parts."""

_OPTIONS = [
    ("grpc.max_send_message_length", MAX_FRAME + 1),
    ("grpc.max_receive_message_length", MAX_FRAME + 1),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # without it a frozen peer went unnoticed for 45 s
    ("grpc.http2.bdp_probe", 0),  # with it a bulk transfer over a lossy link held pings up for more than 4 s
    ("grpc.http2.lookahead_bytes", 1 << 17),  # by default the last bytes of a batch of 64 KiB wait for a round trip
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
]

Stream = Any
"""What parties talk over: ``await read()`` gives a frame or the end-of-stream mark, ``await write(frame)`` sends."""

_MORE, _LAST = b"+", b"."


class Frames:
    """A gRPC stream of frames. One of more than `PART` bytes goes as several messages: all begin with '+', the last
    with '.'. One writer at a time."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def read(self) -> Any:
        """The next frame, whole."""
        message = await self.raw.read()
        if message is grpc.aio.EOF or message[:1] != _MORE:
            return message
        parts, size = [], 0
        while message is not grpc.aio.EOF:
            parts.append(memoryview(message)[1:])
            size += len(message)
            if size > MAX_FRAME or message[:1] not in (_MORE, _LAST):
                raise PeerError(f"a frame in parts has '+' and '.' before them and {MAX_FRAME} bytes; it is closed.")
            if message[:1] == _LAST:
                return b"".join(parts)
            message = await self.raw.read()
        return message

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        if len(frame) <= PART:
            await self.raw.write(frame)
            return
        for start in range(0, len(frame), PART - 1):
            mark = _MORE if start + PART - 1 < len(frame) else _LAST
            await self.raw.write(mark + frame[start : start + PART - 1])

    def auth_context(self) -> Any:
        """What the handshake found out about the other side; at the server."""
        return self.raw.auth_context()

    def peer(self) -> str:
        """Where the other side is; at the server."""
        return str(self.raw.peer())

    async def done_writing(self) -> None:
        """Say that nothing more comes."""
        await self.raw.done_writing()


async def heard_out(stream: Stream, hear: Callable[[bytes], object] = len) -> None:
    """Let a closed peer finish its sentence: one whose stream ends while it writes never reads why."""
    with suppress(PeerError, *LOST):
        async with asyncio.timeout(GOODBYE_SECONDS):
            while (frame := await stream.read()) is not grpc.aio.EOF:
                hear(frame)


async def listen(
    address: str, credentials: grpc.ServerCredentials, session: Callable[[Stream], Awaitable[None]]
) -> tuple[grpc.aio.Server, int]:
    """Serve `session` for every stream at `address` (``host:port``; port 0: any); the server and its port."""

    async def run(_: Any, context: Any) -> None:
        await session(Frames(context))

    handler = grpc.stream_stream_rpc_method_handler(run)
    service, method = METHOD.strip("/").split("/")
    server = grpc.aio.server(options=[*_OPTIONS, ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise PeerError(f"{address} cannot be listened on ({error}); choose another `listen` address.") from None
    await server.start()
    return server, port


def open_stream(address: str, credentials: grpc.ChannelCredentials, server: str) -> tuple[grpc.aio.Channel, Stream]:
    """A channel to the party called `server` at `address` and one stream on it; nothing is sent yet."""
    channel = grpc.aio.secure_channel(address, credentials, options=[*_OPTIONS, peer_option(server)])
    return channel, Frames(channel.stream_stream(METHOD)())
