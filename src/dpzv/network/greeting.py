"""The first words of a device, at the server of a run or of a prediction: who it is, and which records it has."""

from __future__ import annotations

from dpzv.config import Config
from dpzv.errors import PeerError, PeerRefused
from dpzv.network import wire
from dpzv.network.transport import Peer, Stream, next_frame
from dpzv.version import VERSION

__all__ = ["greet", "hashed_ids"]

IDS_SECONDS = 600.0
"""How long a device may take to send its ids; this is enough for a million of them over a slow line."""
FIRST_WORD_SECONDS = 10.0
"""How long a new connection may stay silent."""


async def greet(stream: Stream, config: Config) -> tuple[int, wire.Hello]:
    """The number of the device at the other end and its hello; refuses strangers and other configurations."""
    name, names = stream.peer_name, config.network.devices
    if name not in names:
        raise PeerRefused(f"'{name}' is not a device of this run, which has {', '.join(names)}; its link is closed.")
    stream.most = wire.HELLO_BYTES
    frame = await next_frame(stream, FIRST_WORD_SECONDS)
    protocol = wire.protocol_of(frame)
    if protocol not in (None, wire.PROTOCOL):
        raise PeerRefused(
            f"'{name}' speaks protocol {protocol}, this server speaks {wire.PROTOCOL} (dpzv {VERSION}); install the "
            "same version."
        )
    hello = wire.unpack(None, frame)
    if not isinstance(hello, wire.Hello):
        raise PeerError(f"'{name}' must say hello first, got {type(hello).__name__}; its link is closed.")
    if hello.config_hash != wire.agreed_hash(config):
        raise PeerRefused(f"'{name}' has another run configuration than the server; give all parties the same file.")
    return names.index(name) + 1, hello


async def hashed_ids(peer: Peer) -> bytes:
    """The hashed ids of a device that has been asked for them."""
    peer.stream.most = wire.IDS_BYTES
    ids = wire.unpack(None, await next_frame(peer.stream, IDS_SECONDS))
    if isinstance(ids, wire.Ids) and len(ids.hashes) % 16 == 0:
        return ids.hashes
    got = f"{len(ids.hashes)} bytes" if isinstance(ids, wire.Ids) else type(ids).__name__
    raise PeerError(f"device {peer.m} must send its hashed ids, 16 bytes each, got {got}; its link is closed.")
