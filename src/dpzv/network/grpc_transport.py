"""gRPC streams with mutual TLS: both sides show a certificate of the federation's authority, or there is no link.

Pings find a dead or frozen peer within seconds. They wait behind the data that is already on its way, so little may be
on its way at once: a long frame is sent in parts, and gRPC is kept from widening its window. Nothing outside this file
imports grpc.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import grpc
import grpc.aio

from dpzv.errors import ConfigError, DpzvError, PeerError
from dpzv.network.admission import Admission, NotAdmitted
from dpzv.network.doorkeeper import HANDSHAKE_SECONDS, Doorkeeper, most_connections
from dpzv.network.identity import party_name
from dpzv.network.keyfiles import Credentials, read_party_keys, renewal, stamp_of
from dpzv.network.logs import LimitedLog
from dpzv.network.transport import LinkLost, Stream
from dpzv.network.wire import PART
from dpzv.protocol.codec import MAX_FRAME

__all__ = [
    "METHOD",
    "GrpcConnector",
    "GrpcListener",
    "GrpcStream",
    "channel_credentials",
    "peer_option",
    "server_credentials",
]

LOG = logging.getLogger("dpzv.server")

METHOD = "/dpzv.Session/Run"

FAULT = "the server had an internal error; its log says more"
"""All that a device hears of an error that the server did not expect."""

_OPTIONS = [
    ("grpc.max_send_message_length", PART),
    ("grpc.max_receive_message_length", PART),
    # embeddings and noise do not shrink, and a short compressed message may become a very long one
    ("grpc.compression_enabled_algorithms_bitset", 1),
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

_GONE = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises when the other side is gone."""

# Format of the wire: a message that begins with one of these is a part of a longer frame.
_MORE, _LAST = b"+", b"."


class GrpcStream:
    """A stream over a gRPC call.

    A frame of more than `PART` bytes goes as several messages: all but the last begin with '+', the last with '.'.
    """

    def __init__(self, raw: Any, server: str = "", cut: Callable[[], object] | None = None) -> None:
        """`raw` is the call; `server` is the name in the server's certificate, given at the device's side only.

        `cut` ends the connection; without it the call is cancelled, which only the device's side can do.
        """
        self.raw, self._server, self._cut, self.most = raw, server, cut, MAX_FRAME

    @property
    def peer_name(self) -> str:
        """The name in the other side's certificate, which the handshake has verified."""
        return self._server or _client_name(self.raw)

    async def read(self) -> bytes | None:
        """The next frame, or `None` once the other side has ended the stream."""
        try:
            message = await self.raw.read()
            if message is grpc.aio.EOF:
                return None
            if message[:1] != _MORE:
                if len(message) > self.most:
                    raise self._too_long(len(message))
                return message  # type: ignore[no-any-return]  # bytes
            parts: list[memoryview] = []
            came = 0
            while message is not grpc.aio.EOF:
                mark, size = message[:1], len(message)
                if mark not in (_MORE, _LAST) or (mark == _MORE and size != PART):
                    raise PeerError(
                        f"a frame in parts must have '+' or '.' before each part and {PART} bytes in all parts but the "
                        f"last, got {mark!r} and {size} bytes; the link is closed."
                    )
                came += size - 1
                if came > self.most:
                    raise self._too_long(came)
                parts.append(memoryview(message)[1:])
                if mark == _LAST:
                    return b"".join(parts)
                message = await self.raw.read()
            return None
        except _GONE as error:
            raise _lost(error) from error

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        try:
            if len(frame) <= PART:
                await self.raw.write(frame)
                return
            whole = memoryview(frame)
            for start in range(0, len(frame), PART - 1):
                mark = _MORE if start + PART - 1 < len(frame) else _LAST
                await self.raw.write(b"".join((mark, whole[start : start + PART - 1])))
        except _GONE as error:
            raise _lost(error) from error

    async def close(self) -> None:
        """Say that nothing more comes from this side; only devices call this."""
        try:
            await self.raw.done_writing()
        except _GONE as error:
            raise _lost(error) from error

    def cut(self) -> None:
        """Lose the link at once."""
        (self._cut or self.raw.cancel)()

    def _too_long(self, size: int) -> PeerError:
        return PeerError(f"a frame has at most {self.most} bytes here, got {size} or more; the link is closed.")


class GrpcListener:
    """A server at `address` (``host:port``; port 0 means any free one), with the certificate of `credentials`."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._asked, self._credentials = address, credentials
        self._server: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._door: Doorkeeper | None = None
        self.port, self.address = 0, "no port yet"

    async def start(self, talk: Callable[[Stream], Awaitable[None]]) -> None:
        """Run `talk` for every stream of a device from now on."""

        admission = Admission(self._credentials)
        most = most_connections()
        door, log = Doorkeeper(most), LimitedLog(LOG)
        self._door = door

        async def run(_: Any, context: Any) -> None:
            peer = context.peer()
            stream = GrpcStream(context, cut=partial(door.cut, peer))
            try:
                certificate = context.auth_context().get("x509_pem_cert", ())
                with door.call(peer, stream.peer_name) as refused:
                    if refused:
                        log.write(logging.WARNING, refused, refused)
                    else:
                        async with admission.admitted(certificate):
                            await talk(stream)
            except NotAdmitted as error:
                log.write(logging.WARNING, "certificates that do not count", f"a link to {peer} is closed: {error}")
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            except PeerError as error:
                log.write(logging.WARNING, "certificates without a party's name", str(error))
            except Exception:  # gRPC would send the error's own text, which may tell of labels or of other devices
                LOG.exception("a device's link ended with an internal error")
                await context.abort(grpc.StatusCode.INTERNAL, FAULT)

        handler = grpc.stream_stream_rpc_method_handler(run)
        service, method = METHOD.strip("/").split("/")
        server = self._server = grpc.aio.server(options=[*_OPTIONS, *_door_options(most)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        try:
            port = server.add_secure_port(self._asked, server_credentials(self._credentials))
        except RuntimeError as error:
            raise PeerError(
                f"the server cannot listen on {self._asked} ({error}); choose another `listen` address."
            ) from None
        await server.start()
        self._watching = asyncio.create_task(admission.watch())
        door.open(port)
        self.port, self.address = port, f"port {port}"

    async def stop(self, seconds: float) -> None:
        """Accept no more streams, and end those that are left after `seconds`."""
        if self._server is None or self._door is None:
            return
        if self._watching is not None:
            self._watching.cancel()
        stopping = asyncio.ensure_future(self._server.stop(grace=seconds))
        done, _ = await asyncio.wait({stopping}, timeout=seconds + 1)
        self._door.close()  # a call whose peer takes nothing ends with its connection
        if not done:
            await asyncio.wait({stopping}, timeout=1)


class GrpcConnector:
    """How a device with these files reaches the party called `server` at `address` (``host:port``)."""

    def __init__(self, address: str, credentials: Credentials, server: str) -> None:
        self._address, self._credentials, self._server = address, credentials, server

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[GrpcStream]:
        """A new stream, with the certificate as it is on the disk now; nothing is sent yet."""
        credentials, options = channel_credentials(self._credentials), [*_OPTIONS, peer_option(self._server)]
        channel = grpc.aio.secure_channel(self._address, credentials, options=options)
        try:
            yield GrpcStream(channel.stream_stream(METHOD)(), self._server)
        finally:
            await channel.close()


def _door_options(most: int) -> list[tuple[str, int]]:
    """What a listener adds to `_OPTIONS`: how many connections there may be, and how long they may stay silent."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_SECONDS)),
        ("grpc.max_concurrent_streams", 1),
    ]


def peer_option(name: str) -> tuple[str, str]:
    """The channel option that demands the certificate of party `name` from the server, whatever its address is.

    Without it the address decides, and any party whose certificate is for that address could pose as the server.
    """
    return ("grpc.ssl_target_name_override", party_name(name))


def channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """What a client connects with, read from the files now.

    A channel keeps them for its own reconnects, so a renewed certificate is used only by a new channel.
    """
    pair = read_party_keys(credentials)
    return grpc.ssl_channel_credentials(pair.ca, pair.key, pair.certificate)


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """What one listener listens with: clients must show a valid certificate of the same authority.

    The files are looked at whenever a client connects, so a renewed certificate is used from the next connection on.
    Files that do not fit together at that moment (half copied, expired) are not taken, and the log says why.
    """
    own = _Renewable(credentials)
    return grpc.dynamic_ssl_server_credentials(own.configuration(), own.renewed, require_client_authentication=True)


class _Renewable:
    """A certificate that may be renewed; gRPC asks for the new one at every connection, from a thread of its own."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._used = self._stamps()  # before reading, so that a change while reading is seen the next time
        self._pair = read_party_keys(credentials)
        self._told: object = None
        self._lock = threading.Lock()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """The pair in use, as gRPC wants it."""
        pair = self._pair
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], root_certificates=pair.ca)

    def renewed(self) -> Any:
        """The new configuration if the files have changed and fit together, else `None`, and the old one stays."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._used:
                try:
                    self._pair = read_party_keys(self._credentials)
                except DpzvError as error:
                    self._tell(stamps, f"{error} Until then the certificate read before stays in use.")
                    return None
                self._used = stamps
                LOG.info("%s was renewed, valid until %s.", self._credentials.certificate, self._pair.until)
                return self.configuration()
            if datetime.now(UTC) > self._pair.until:
                expired = f"expired on {self._pair.until:%Y-%m-%d %H:%M} UTC"
                self._tell(self._pair.until, renewal(self._credentials, self._pair.name, expired))
            return None

    def _tell(self, what: object, sentence: str) -> None:
        """Log the sentence once, and not again at every connection."""
        if self._told != what:
            self._told = what
            LOG.error("%s", sentence)

    def _stamps(self) -> list[tuple[int, ...]]:
        return [stamp_of(path) for path in (self._credentials.certificate, self._credentials.key, self._credentials.ca)]


def _client_name(context: Any) -> str:
    """The name in the client's certificate; refuses a call without one."""
    found: Iterable[bytes] = context.auth_context().get("x509_common_name", ())
    names = [name.decode(errors="replace") for name in found]
    if len(names) != 1:
        raise PeerError(
            f"the peer at {context.peer()} must show a certificate with one name, it has {len(names)}; "
            "connect with the files of `dpzv keys issue`."
        )
    try:
        return party_name(names[0])
    except ConfigError as error:
        raise PeerError(f"the certificate of the peer at {context.peer()} is not a party's: {error}") from None


def _lost(error: BaseException) -> LinkLost:
    if isinstance(error, grpc.aio.AioRpcError):
        return LinkLost(f"{error.code().name}: {error.details()}")
    return LinkLost(f"{type(error).__name__}: {error}")
