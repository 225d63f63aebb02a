"""A virtual clock: who is ready when, from each device's compute time, bandwidth and latency.

Events run in the order of time, and at the same time in the order of the devices. So the order of the rounds and the
delays follow from the speeds alone. With equal fixed speeds devices take turns. With exponential compute times they are
independent Poisson processes, until a device has had its share of the rounds (`ServerRun.has_round`): the paper's
Assumption 3 with q_m in proportion to the speeds.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import NamedTuple

from dpzv.config import Config, per_device
from dpzv.errors import ConfigError
from dpzv.rng import numpy_generator
from dpzv.validate import positive

__all__ = ["Speed", "VirtualClock", "compute_of", "speeds_of"]


@dataclass(frozen=True, slots=True)
class Speed:
    """One device: seconds of compute for a batch (their mean if `exponential`), bytes/s, seconds of latency."""

    compute: float
    exponential: bool
    bandwidth: float
    latency: float


class Arrival(NamedTuple):
    """Device m's batch reaches the server at `seconds`; arrivals are sorted by time, then by device."""

    seconds: float
    m: int


def speeds_of(config: Config, M: int) -> tuple[Speed, ...]:
    """The virtual speeds of the M devices.

    `devices.compute` is the time of two evaluations, which one direction takes; K > 1 directions take K + 1.
    """
    K = config.train.directions
    computes: tuple[float | str, ...] = per_device("devices.compute", config.devices.compute, M)
    bandwidths = per_device("devices.bandwidth", config.devices.bandwidth, M)
    latencies = per_device("devices.latency", config.devices.latency, M)
    for latency in latencies:
        if latency < 0:
            raise ConfigError(f"devices.latency must be at least 0, got {latency}; it is seconds each way.")
    return tuple(
        Speed((K + 1) / 2 * seconds, exponential, bandwidth, latency)
        for (seconds, exponential), bandwidth, latency in zip(
            map(compute_of, computes), bandwidths, latencies, strict=True
        )
    )


def compute_of(value: float | str) -> tuple[float, bool]:
    """Seconds and whether they are the mean of exponential times, from ``0.01`` or ``"exponential 0.01"``."""
    if not isinstance(value, str):
        return positive("devices.compute", value), False
    word, _, number = value.partition(" ")
    try:
        seconds = float(number)
    except ValueError:
        seconds = -1.0
    if word != "exponential" or not 0 < seconds < math.inf:
        raise ConfigError(f"devices.compute takes seconds or 'exponential SECONDS', got '{value}'; give one of them.")
    return seconds, True


class VirtualClock:
    """The queue of arrivals. `state` and `restore` carry it over a checkpoint."""

    def __init__(self, speeds: tuple[Speed, ...], up: tuple[int, ...], down: tuple[int, ...], seed: int) -> None:
        """`up` and `down` are the payload bytes of a batch of each device."""
        self._speeds, self._seed = speeds, seed
        self._up = tuple(s.latency + n / s.bandwidth for s, n in zip(speeds, up, strict=True))
        self._down = tuple(s.latency + n / s.bandwidth for s, n in zip(speeds, down, strict=True))
        self._queue: list[Arrival] = []
        self.seconds = 0.0
        for m in range(1, len(speeds) + 1):
            self._push(m, 0, 0.0)

    def next(self) -> Arrival:
        """The next arrival, in time order."""
        arrival = heapq.heappop(self._queue)
        self.seconds = arrival.seconds
        return arrival

    def answered(self, m: int, position: int) -> None:
        """The server answered device m now; its batch at `position` will arrive next."""
        self._push(m, position, self.seconds + self._down[m - 1])

    def state(self) -> list[tuple[float, int]]:
        """The queue as plain values, with the present time first (as device 0); checkpoints store it in this order."""
        return [(self.seconds, 0), *((a.seconds, a.m) for a in self._queue)]

    def restore(self, state: list[tuple[float, int]]) -> None:
        """Undo everything since `state` was taken."""
        self.seconds = state[0][0]
        self._queue = [Arrival(seconds, m) for seconds, m in state[1:]]
        heapq.heapify(self._queue)

    def _push(self, m: int, position: int, start: float) -> None:
        speed = self._speeds[m - 1]
        compute = speed.compute
        if speed.exponential:  # the stream's name is a format of seeded runs
            compute *= float(numpy_generator(self._seed, "clock", m, position).exponential())
        heapq.heappush(self._queue, Arrival(start + compute + self._up[m - 1], m))
