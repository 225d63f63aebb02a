"""Hears the first words of a device, in a run or for a prediction: who it is, and which records it has.

A device that comes back also shows the receipt of its last release. If the server's ledger does not hold that release,
the ledger is an old copy, and the run ends.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from dpzv.config import Config
from dpzv.declarations import start_facts
from dpzv.errors import DiskError, PeerError, PeerRefused, PrivacyRefused
from dpzv.network import wire
from dpzv.network.transport import Peer, Stream, next_frame
from dpzv.privacy.ledger import Ledger
from dpzv.version import VERSION

__all__ = ["ROLLED_BACK", "check_return", "greet", "hashed_ids", "next_piece"]

FIRST_WORD_SECONDS = 10.0
"""How long a new connection may stay silent."""
PIECE_SECONDS = 60.0
"""How long a device may take for the next piece of its ids; this is enough over a slow line."""
ROLLED_BACK = "the server's ledger is an old copy, so its run has ended; ask the server's operator what follows"
"""What a device is told when the ledger is an old copy; the server's log says more."""


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


async def hashed_ids(peer: Peer, count: int) -> NDArray[np.uint8]:
    """The hashed ids of a device that has been asked for its `count` ids, uint8 [count, 16]."""
    if count > wire.MOST_IDS:
        raise PeerRefused(
            f"a device may have at most {wire.MOST_IDS} ids, device {peer.m} has {count}; give it fewer rows."
        )
    peer.stream.most = wire.PART
    ids = wire.Gathered(f"the hashed ids of device {peer.m}", count, 16)
    while not ids.complete:
        ids.take(await next_piece(peer, "its hashed ids"))
    return ids.entries(np.dtype(np.uint8)).reshape(-1, 16)


async def next_piece(peer: Peer, what: str) -> wire.ListPiece:
    """The next piece of a list that a device sends; `what` names it in errors."""
    piece = wire.unpack(None, await next_frame(peer.stream, PIECE_SECONDS))
    peer.require_open()
    if not isinstance(piece, wire.ListPiece):
        raise PeerError(f"device {peer.m} must send {what}, got {type(piece).__name__}; its link is closed.")
    return piece


def check_return(ledger: Ledger, m: int, hello: wire.Hello) -> PrivacyRefused | None:
    """Refuse device m if its folder is of another run. Returns the error of a ledger that is an old copy, if it is."""
    if hello.run_id and hello.run_id != ledger.run_id:
        raise PeerRefused(
            f"device {m} has weights of another run; give it an empty folder, or connect it to that run's server."
        )
    if m in ledger.heard and not hello.run_id and start_facts(ledger.plan.starts[m - 1]).private:
        raise PeerRefused(
            f"device {m} has lost its folder, and with it its private start, which cannot be drawn again; restore the "
            "folder, or start a new run."
        )
    return _rollback(ledger, m, hello) if hello.run_id and hello.position else None


def _rollback(ledger: Ledger, m: int, hello: wire.Hello) -> PrivacyRefused | None:
    """The error that ends the run, if device m was sent a release that the ledger lacks.

    Such a ledger never opens again. A receipt that this server did not give proves nothing, so then only the device is
    refused.
    """
    release = m, hello.position - 1, hello.t
    if not ledger.receipts.is_valid(hello.receipt, *release):
        raise PeerRefused(
            f"device {m} is at batch {hello.position} and must show the receipt of its last release, got one that this "
            "server did not give; restore its folder, or give it an empty one."
        )
    if ledger.knows(*release):
        return None
    if not ledger.durable:
        raise PeerRefused(
            f"device {m} was sent the release of round {hello.t}, which the server has forgotten: with simulated noise "
            "a server that is killed loses the rounds since its last checkpoint; start a new run."
        )
    with suppress(DiskError):  # the run ends all the same, and the same receipt will end it again
        ledger.disown()
    return PrivacyRefused(
        f"device {m} has the receipt of round {hello.t}, which the ledger does not hold: the ledger is an old copy, "
        "and going on would draw fresh noise for what was released before. This folder never opens again, and what its "
        "run has spent is no longer known: start a new run on other records."
    )
