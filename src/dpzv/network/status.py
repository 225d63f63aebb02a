"""What the server's operator sees: a status file, and /metrics for Prometheus. None of it is sent to a device."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from dpzv.durable import readable, write_atomically
from dpzv.errors import ConfigError, DiskError
from dpzv.runtime.server_run import ServerRun
from dpzv.validate import host_and_port

__all__ = [
    "DeviceStatus",
    "Status",
    "keep_status",
    "notify_supervisor",
    "read_status",
    "serve_metrics",
    "status_of",
    "write_status",
]

LOG = logging.getLogger("dpzv.server")
FILE = "status.json"
STALE_SECONDS = 10.0
"""A server writes its status every second; if the status is older than this, the server is stopped or stuck."""


class DeviceStatus(msgspec.Struct, frozen=True):
    """One device: whether it is connected, its releases so far, and how many rounds it is behind.

    `told` says that it has heard that the run is finished, and has kept its weights. `refused` is why it was refused
    for good when it came last; empty if it was not.
    """

    name: str
    here: bool
    releases: int
    rounds_behind: int
    told: bool = False
    refused: str = ""


class Status(msgspec.Struct, frozen=True):
    """Where a run is. Without a budget, both epsilons are `None`.

    `waits` says who or what the run waits for; empty if for nothing. `stage` is "waiting for the parties", "filling the
    table", "rounds", "final head" or "finished".
    """

    time: float
    stage: str
    round: int
    rounds: int
    bytes_up: int
    bytes_down: int
    epsilon_spent: float | None
    epsilon: float | None
    mean_delay: float
    devices: tuple[DeviceStatus, ...]
    waits: str = ""

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.time)

    @property
    def healthy(self) -> bool:
        """Whether the run is finished, or its server has written the status a moment ago."""
        return self.stage == "finished" or self.age < STALE_SECONDS

    def lines(self) -> list[str]:
        """The status in words."""
        head = f"{self.stage}, as of {self.age:.0f} s ago"
        if self.rounds:
            spent = "none" if self.epsilon is None else f"{self.epsilon_spent or 0:.3g} of {self.epsilon:.3g}"
            head += (
                f", round {self.round} of {self.rounds}, {self.bytes_up / 1e6:.1f} MB up, "
                f"{self.bytes_down / 1e6:.1f} MB down, epsilon {spent}, mean delay {self.mean_delay:.1f} rounds"
            )
        devices = [
            f"  {d.name}: {'finished' if d.told else 'here' if d.here else 'away'}, {d.releases} releases, "
            f"{d.rounds_behind} rounds behind" + (f"; refused: {d.refused}" if d.refused else "")
            for d in self.devices
        ]
        waits = [f"waiting for {self.waits}"] if self.waits else []
        old = [] if self.healthy else ["the server writes this every second, so it is stopped or stuck"]
        return [head, *old, *waits, *devices]


def status_of(run: ServerRun | None, stage: str, waits: str, devices: tuple[DeviceStatus, ...]) -> Status:
    """The status of a run, which is not open yet while the server waits for the parties (`None`)."""
    if run is None:
        return Status(time.time(), stage, 0, 0, 0, 0, None, None, 0.0, devices, waits)
    seen, meter = run.journal.snapshot(""), run.journal.meter
    spent, epsilon = (seen.epsilon_spent, seen.epsilon) if math.isfinite(seen.epsilon) else (None, None)
    up, down, delay = meter.bytes_up, meter.bytes_down, run.server.delays.mean
    return Status(time.time(), stage, run.server.t, seen.T, up, down, spent, epsilon, delay, devices, waits)


async def keep_status(folder: Path, status: Callable[[], Status]) -> None:
    """Write the status every second, and tell a supervisor that this process is alive.

    A write that fails ends nothing: the log says so once, and the next second tries again.
    """
    failed = False
    while True:
        try:
            write_status(folder, status())
            failed = False
        except DiskError as error:
            if not failed:
                LOG.warning("the status is not up to date: %s", error)
            failed = True
        notify_supervisor("WATCHDOG=1")
        await asyncio.sleep(1)


def notify_supervisor(message: str) -> None:
    """Tell systemd, where it has started this process with `Type=notify`: "READY=1", "WATCHDOG=1" or "STOPPING=1"."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        if address[0] == "@":
            address = "\0" + address[1:]
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(message.encode(), address)


def write_status(folder: Path, status: Status) -> None:
    """Keep the status where `dpzv server --status` looks."""
    write_atomically(folder / FILE, msgspec.json.encode(status))


def read_status(folder: Path) -> Status:
    """The status of the run in `folder`, which its server writes every second."""
    path = folder / FILE
    if not path.exists():
        raise ConfigError(f"{path} does not exist; start the server first.")
    with readable(path, "the status of a run", "start the server, which writes it anew"):
        return msgspec.json.decode(path.read_bytes(), type=Status)


def metrics_text(status: Status) -> str:
    """The status in Prometheus' text format."""
    names = ("round", "rounds", "bytes_up", "bytes_down", "epsilon_spent")
    values = {name: getattr(status, name) for name in names}
    values |= {"mean_delay_rounds": status.mean_delay, "status_age_seconds": status.age}
    lines = [f"dpzv_{name} {'NaN' if value is None else value}" for name, value in values.items()]
    for device in status.devices:
        for name in ("here", "releases", "rounds_behind"):
            lines.append(f'dpzv_device_{name}{{device="{device.name}"}} {int(getattr(device, name))}')
    return "\n".join(lines) + "\n"


async def serve_metrics(address: str, status: Callable[[], Status]) -> asyncio.Server:
    """GET /metrics at `address` (host:port)."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readline(), 5)
            found = request.split()[1:2] == [b"/metrics"]
            body = metrics_text(status()).encode() if found else b"try /metrics\n"
            head = f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}\r\nContent-Type: text/plain; version=0.0.4\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):  # the last one: a first line without an end
            pass
        finally:
            writer.close()

    host, port = host_and_port("metrics", address, 0)
    try:
        return await asyncio.start_server(answer, host.strip("[]"), port)
    except OSError as error:
        raise ConfigError(
            f"the server cannot listen on metrics='{address}' ({error}); give another host:port."
        ) from None
