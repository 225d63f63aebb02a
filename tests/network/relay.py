"""A slow and lossy network of namespaces: a tun device in each, and a relay in user space between them.

The namespaces have no names and the devices are not persistent: nothing of them outlasts the processes that use them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import random
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

__all__ = ["Namespace", "Relay", "missing"]

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
IFF_UP, IFF_RUNNING = 0x01, 0x40
NOT_HERE = {errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOSYS, errno.EINVAL}
PACKET = 2048
"""Bytes to read at once; a packet has at most the 1500 of the device."""

Result = TypeVar("Result")


def missing() -> str:
    """Why there can be no such network here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for path in ("/dev/net/tun", "/proc/self/ns/net"):
        if not os.path.exists(path):
            return f"{path} is missing"
    try:
        Namespace("10.77.0.1").close()
    except OSError as error:
        if error.errno in NOT_HERE:
            return f"no network namespace with a tun device can be made here ({error})"
        raise
    return ""


class Namespace:
    """A network namespace with one tun device; it lasts as long as its thread, its device or a process in it."""

    def __init__(self, address: str) -> None:
        """`address`: IPv4, in a network of 256."""
        self.address, self.tun = address, -1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=address)
        try:
            self.inside(self._make)
        except BaseException:
            self.close()
            raise

    def inside(self, call: Callable[[], Result]) -> Result:
        """What `call` gives in the namespace: its sockets and the processes it starts belong there."""
        return self._thread.submit(call).result()

    def close(self) -> None:
        """Leave it; who started processes in it ends them first."""
        if self.tun >= 0:
            os.close(self.tun)
            self.tun = -1
        self._thread.shutdown()

    def _make(self) -> None:
        """Give this thread, and no other, a network of its own."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"unshare: {os.strerror(number)}")
        self.tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        name = b"far0"
        fcntl.ioctl(self.tun, TUNSETIFF, struct.pack("16sH22x", name, IFF_TUN | IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, value in ((SIOCSIFADDR, self.address), (SIOCSIFNETMASK, "255.255.255.0")):
                address = struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, address)
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name, IFF_UP | IFF_RUNNING))


class Relay:
    """Carries IPv4 packets between namespaces, each `delay` seconds later, and drops a share `loss` of them.

    `carried` and `dropped` count packets.
    """

    def __init__(self, addresses: list[str], *, delay: float, loss: float, seed: int) -> None:
        self._delay, self._loss, self._draw = delay, loss, random.Random(seed)
        self.carried = self.dropped = 0
        self._stopping = False
        self._under_way: deque[tuple[float, int, bytes]] = deque()  # one delay for all, so first in is first out
        self.namespaces: list[Namespace] = []
        with contextlib.ExitStack() as stack:
            for address in addresses:
                namespace = Namespace(address)
                stack.callback(namespace.close)
                self.namespaces.append(namespace)
            self._opened = stack.pop_all()
        self._tuns = {socket.inet_aton(n.address): n.tun for n in self.namespaces}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="relay")
        self._work = self._thread.submit(self._run)

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._thread.shutdown()
        self._opened.close()
        self._work.result()  # a relay that failed is no slow network, and says so

    def _run(self) -> None:
        poll = select.poll()
        for tun in self._tuns.values():
            poll.register(tun, select.POLLIN)
        while not self._stopping:
            wait = self._under_way[0][0] - time.monotonic() if self._under_way else 0.05
            ready = poll.poll(max(0.0, 1000 * wait))
            for tun, _ in ready:
                for packet in _waiting(tun):
                    self._take(packet, time.monotonic() + self._delay)  # more may come while these are read
            now = time.monotonic()
            while self._under_way and self._under_way[0][0] <= now:
                _, tun, packet = self._under_way.popleft()
                os.write(tun, packet)
                self.carried += 1

    def _take(self, packet: bytes, due: float) -> None:
        """Lose a packet or send it on its way; what is not IPv4 for one of the namespaces is nobody's."""
        tun = self._tuns.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        if tun is None:
            return
        if self._draw.random() < self._loss:
            self.dropped += 1
        else:
            self._under_way.append((due, tun, packet))


def _waiting(tun: int) -> Iterator[bytes]:
    """The packets that a device has now."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield os.read(tun, PACKET)
