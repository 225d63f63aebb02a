"""gRPC streams of raw bytes, and the options that make a dead or frozen peer known within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from dpzv.errors import PeerError
from dpzv.network.credentials import peer_option
from dpzv.protocol.codec import MAX_FRAME

__all__ = ["LOST", "METHOD", "Stream", "listen", "open_stream"]

METHOD = "/dpzv.Session/Run"

LOST = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, ConnectionError, TimeoutError)
"""What reading from or writing to a stream raises when the other side is gone."""

_OPTIONS = [
    ("grpc.max_send_message_length", MAX_FRAME + 1),
    ("grpc.max_receive_message_length", MAX_FRAME + 1),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # without it a frozen peer went unnoticed for 45 s
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
]

Stream = Any
"""A gRPC stream: ``await read()`` gives bytes or the end-of-stream mark, ``await write(bytes)`` sends."""


async def listen(
    address: str, credentials: grpc.ServerCredentials, session: Callable[[Stream], Awaitable[None]]
) -> tuple[grpc.aio.Server, int]:
    """Serve `session` for every stream at `address` (``host:port``; port 0: any); the server and its port."""

    async def run(_: Any, context: Stream) -> None:
        await session(context)

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
    return channel, channel.stream_stream(METHOD)()
