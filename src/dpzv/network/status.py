"""What the server's operator sees: a status file, and /metrics for Prometheus. None of it is sent to a device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dpzv.durable import write_atomically
from dpzv.errors import ConfigError

__all__ = ["DeviceStatus", "Status", "metrics_text", "read_status", "serve_metrics", "write_status"]

FILE = "status.json"


class DeviceStatus(msgspec.Struct, frozen=True):
    """One device: whether it is connected, its releases so far, and how many rounds it is behind.

    `told` says that it has heard that the run is finished, and has kept its weights.
    """

    name: str
    here: bool
    releases: int
    rounds_behind: int
    told: bool = False


class Status(msgspec.Struct, frozen=True):
    """Where a run is. Without a budget, both epsilons are `None`.

    `stage` is "waiting for the parties", "filling the table", "rounds", "final head" or "finished".
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

    def lines(self) -> list[str]:
        """The status in words."""
        head = self.stage
        if self.rounds:
            spent = "none" if self.epsilon is None else f"{self.epsilon_spent or 0:.3g} of {self.epsilon:.3g}"
            head += (
                f", round {self.round} of {self.rounds}, {self.bytes_up / 1e6:.1f} MB up, "
                f"{self.bytes_down / 1e6:.1f} MB down, epsilon {spent}, mean delay {self.mean_delay:.1f} rounds"
            )
        devices = [
            f"  {d.name}: {'finished' if d.told else 'here' if d.here else 'away'}, {d.releases} releases, "
            f"{d.rounds_behind} rounds behind"
            for d in self.devices
        ]
        return [head, *devices]


def write_status(folder: Path, status: Status) -> None:
    """Keep the status where `dpzv server --status` looks."""
    write_atomically(folder / FILE, msgspec.json.encode(status))


def read_status(folder: Path) -> Status:
    """The status of the run in `folder`, which its server writes every second."""
    path = folder / FILE
    if not path.exists():
        raise ConfigError(f"{path} does not exist; start the server first.")
    return msgspec.json.decode(path.read_bytes(), type=Status)


def metrics_text(status: Status) -> str:
    """The status in Prometheus' text format."""
    names = ("round", "rounds", "bytes_up", "bytes_down", "epsilon_spent")
    values = {name: getattr(status, name) for name in names}
    values |= {"mean_delay_rounds": status.mean_delay, "status_age_seconds": max(0.0, time.time() - status.time)}
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
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()

    host, _, port = address.rpartition(":")
    try:
        return await asyncio.start_server(answer, host or "127.0.0.1", int(port))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the server cannot listen on metrics='{address}' ({error}); give another host:port."
        ) from None
