"""How many connections strangers may hold open at a listening port, and how a connection is cut at once.

gRPC accepts connections by itself and hands out none of them, so this process looks through its own descriptors. A
connection on which a device talks is never closed, however many there are. On Linux the kernel hands over a connection
after its first byte, or after some seconds without one. All others (a handshake that does not end, a link without a
call) are few per address, few in all, and short-lived; of too many, the oldest are closed, so that a device that comes
now gets through its handshake.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import resource
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

__all__ = ["HANDSHAKE_SECONDS", "Doorkeeper", "most_connections"]

Place = tuple[str, int]
"""The address and the port of the other end of a connection."""

HANDSHAKE_SECONDS = 10.0
"""How long a connection may be open without a call on it."""
PER_ADDRESS = 32
"""Connections without a call from one address; an IPv6 network of 64 bits counts as one address."""
PER_NAME = 4
"""Calls at a time with the certificate of one party; an honest device has one, or two while it comes back."""
SWEEP_SECONDS, SOON = 0.5, 0.05
"""How often connections are looked at, and how soon again after some were closed."""
MOST = 1024
"""Connections in all, however many descriptors the process may have."""
RESERVED = 256
"""Descriptors that no connection may take: those of the ledger, checkpoints, logs and the program itself."""
ENOUGH = 65_536
"""Descriptors beyond which more are of no use."""


def most_connections() -> int:
    """Allow this process as many descriptors as it may have; the number of connections that leaves a reserve."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < best:
        with suppress(ValueError, OSError):  # some systems allow less than they say; then the limit stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
            soft = best
    allowed = ENOUGH if soft == resource.RLIM_INFINITY else min(soft, ENOUGH)
    return min(MOST, allowed - min(RESERVED, allowed // 2))


class Doorkeeper:
    """Watches the connections to one port of this process, of which there may be `most`."""

    def __init__(self, most: int) -> None:
        self._most, self.port = most, 0
        self._talking: Counter[Place] = Counter()  # calls on each connection
        self._names: Counter[str] = Counter()  # calls of each party
        self._seen: dict[Place, float] = {}  # when each connection without a call was first seen
        self._watching: asyncio.Task[None] | None = None

    def open(self, port: int) -> None:
        """Watch the connections to this port from now on; accept none before the other end has said something."""
        self.port, self._watching = port, asyncio.create_task(self._watch())
        if wait := getattr(socket, "TCP_DEFER_ACCEPT", 0):
            for _, found in self._sockets():
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.setsockopt(socket.IPPROTO_TCP, wait, round(HANDSHAKE_SECONDS))

    def close(self) -> None:
        """Watch no more, and cut the connections that are left."""
        if self._watching is not None:
            self._watching.cancel()
        for _, connection in self._connections():
            _cut(connection)

    @contextmanager
    def call(self, peer: str, name: str) -> Iterator[str]:
        """Count a call of party `name` in the block; gives why it is refused, or "". `peer` is as gRPC writes it."""
        place = _place_of(peer)
        self._talking[place] += 1
        self._names[name] += 1
        try:
            yield f"'{name}' has more than {PER_NAME} links at a time; one is closed." * (self._names[name] > PER_NAME)
        finally:
            self._talking -= Counter([place])  # which drops what has come to 0
            self._names -= Counter([name])

    def cut(self, peer: str) -> None:
        """End the connection from `peer` at once, whatever is on its way."""
        place = _place_of(peer)
        for found, connection in self._connections():
            if found == place:
                _cut(connection)

    def sweep(self) -> bool:
        """Close connections without a call that are too old, or too many; true if there were any."""
        now, idle = time.monotonic(), dict[Place, int]()
        for place, connection in self._connections():
            if place not in self._talking:
                idle[place] = connection
        self._seen = {place: self._seen.get(place, now) for place in idle}
        per_address: Counter[str] = Counter()
        newest_first, cut = sorted(idle, key=lambda place: -self._seen[place]), False
        for number, place in enumerate(newest_first):
            network = _network(place[0])
            per_address[network] += 1
            old = now - self._seen[place] > HANDSHAKE_SECONDS
            if old or per_address[network] > PER_ADDRESS or number >= self._most // 2:
                _cut(idle[place])
                cut = True
        return cut

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SOON if self.sweep() else SWEEP_SECONDS)

    def _connections(self) -> Iterator[tuple[Place, int]]:
        """The other end and the descriptor of every connection to this port."""
        for descriptor, found in self._sockets():
            with suppress(OSError):  # it may be closed by now, or be the one that listens
                there = found.getpeername()
                yield (_plain(there[0]), there[1]), descriptor

    def _sockets(self) -> Iterator[tuple[int, socket.socket]]:
        """Every socket of this process at this port, with its descriptor."""
        for name in os.listdir("/dev/fd"):
            descriptor = int(name)
            with suppress(OSError):  # it may be closed by now
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    with _borrowed(descriptor) as found:
                        here = found.getsockname()
                        if isinstance(here, tuple) and here[1] == self.port:
                            yield descriptor, found


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket of gRPC's, which stays open."""
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def _cut(descriptor: int) -> None:
    """Shut a connection down; gRPC notices, and closes it.

    The number may belong to another connection by now, which is then cut in its place: its device comes back. What is
    not a connection cannot be shut down.
    """
    with suppress(OSError), _borrowed(descriptor) as found:
        found.shutdown(socket.SHUT_RDWR)


def _place_of(peer: str) -> Place:
    """Where a peer is, from gRPC's ``ipv4:1.2.3.4:567`` or ``ipv6:%5B::1%5D:567``."""
    address, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain(address.strip("[]")), int(port) if port.isdigit() else 0


def _plain(address: str) -> str:
    """An address in one form, whether it is an IPv4 address or an IPv6 address that stands for one."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = known.ipv4_mapped if isinstance(known, ipaddress.IPv6Address) else None
    return str(mapped or known)


def _network(address: str) -> str:
    """What counts as one address: an IPv4 address, or the first 64 bits of an IPv6 address."""
    return str(ipaddress.ip_network(f"{address}/64", strict=False)) if ":" in address else address
