"""What the host does for the rounds of a fused run: who is next, what it costs, and what is written down.

All of it follows from public numbers, so it is done for a whole block before the block is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpzv.protocol.messages import Embeddings, Release
from dpzv.runtime.simulate import Simulation

__all__ = ["Book", "Turns"]


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Rounds `t` of a run, [n] each: device m's batch at `position`, the noise of its release, and the head's steps."""

    t: NDArray[np.int64]
    m: NDArray[np.int64]
    position: NDArray[np.int64]
    noise: NDArray[np.float64]
    head_steps: Sequence[int]

    def some(self, rows: Sequence[int]) -> Turns:
        """The rounds at these places, without the steps of the head."""
        return Turns(self.t[rows], self.m[rows], self.position[rows], self.noise[rows], ())


class Book:
    """One run of several that advance together."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._run = simulation, simulation.server_run
        server, B = self._run.server, self._run.plan.B
        self._numbers = [server.method.numbers(B, width) for width in server.table.widths]
        self._sizes = cache(self._sizes_of)

    def plan(self, n: int) -> Turns:
        """The next n rounds, which are charged and counted now."""
        simulation, run, rounds = self._simulation, self._run, []
        server, schedules, devices, meter = run.server, run.schedules, simulation.devices, run.journal.meter
        for _ in range(n):
            m = simulation.next_device()
            t, position = server.t + 1, server.positions[m - 1]
            server.passed(m, t, schedules[m - 1].ids(position))
            devices[m - 1].position = position + 1
            simulation.clock.answered(m, position + 1)
            rounds.append((t, m, position))
            up, down, payload = self._sizes(m, _width(t), _width(position))
            meter.bytes_up += up
            meter.bytes_down += down
            meter.payload_bytes += payload
        noise = run.gate.reserve(rounds, self._numbers)
        run.ledger.flush()  # a block is in the ledger before it is computed
        steps = [run.gate.head_steps(t) for t, *_ in rounds] if run.plan.head_steps else [0] * n
        t_all, m_all, positions = np.array(rounds).T
        return Turns(t_all, m_all, positions, noise, steps)

    def settle(
        self,
        turns: Turns,
        Delta: Sequence[NDArray[np.float64]],
        clipped: NDArray[np.int64],
        zeroed: NDArray[np.int64],
    ) -> None:
        """Write down what the rounds `turns` released; no frame was sent, so none has a hash."""
        server, transcript = self._run.server, self._run.folder.transcript
        for t, m, numbers in zip(turns.t.tolist(), turns.m.tolist(), Delta, strict=True):
            transcript(t, m, numbers[: self._numbers[m - 1]], b"")
        for m in range(1, len(server.clipped) + 1):
            own = turns.m == m
            server.clipped[m - 1] += int(clipped[own].sum())
            server.zeroed[m - 1] += int(zeroed[own].sum())

    def _sizes_of(self, m: int, t: int, position: int) -> tuple[int, int, int]:
        """Bytes of a batch's frame and of its answer's, and of the numbers in both, as a network would carry them."""
        run = self._run
        codec, width, B = run.codecs[m - 1], run.server.table.widths[m - 1], run.plan.B
        h = np.zeros((B, width), np.float32)
        message = Embeddings(m, position, (h,) * run.server.method.arrays)
        release = Release(t, m, position, np.zeros(self._numbers[m - 1]))
        payload = codec.payload_bytes(message) + codec.payload_bytes(release)
        return len(codec.encode(message)), len(codec.encode(release)), payload


def _width(number: int) -> int:
    """The least whole number that MessagePack writes in as many bytes as `number`."""
    if number < 1 << 8:
        return 0 if number < 1 << 7 else 1 << 7
    return 1 << 8 if number < 1 << 16 else 1 << 16 if number < 1 << 32 else 1 << 32
