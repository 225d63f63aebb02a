"""The rounds of a fused run before and after they are computed in blocks.

Turns, costs and random draws follow from public numbers and named streams, so they are prepared for a whole block.
Results are written down afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv.config import per_device
from dpzv.methods.vfl_czofo import directions
from dpzv.protocol.messages import Embeddings, Release
from dpzv.rng import numbered
from dpzv.runtime.assemble_device import uplink_of
from dpzv.runtime.fused_devices import Kin
from dpzv.runtime.fused_flat import Flat
from dpzv.runtime.fused_head import Heads
from dpzv.runtime.fused_tape import Tape, normalise
from dpzv.runtime.run_plan import noise_of
from dpzv.runtime.simulate import Simulation

__all__ = ["FusedRun", "Turns", "Writer"]


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


class FusedRun:
    """One run of several that advance together."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._run = simulation, simulation.server_run
        server, B = self._run.server, self._run.plan.B
        self._numbers = [server.method.numbers(B, width) for width in server.table.widths]
        self._sizes = cache(self._sizes_of)

    def plan(self, n: int) -> Turns:
        """The next n rounds, which are charged and counted now."""
        simulation, run, rounds = self._simulation, self._run, []
        server, schedules, devices = run.server, run.schedules, simulation.devices
        for _ in range(n):
            m = simulation.next_device()
            t, position = server.t + 1, server.positions[m - 1]
            server.passed(m, t, schedules[m - 1].ids(position))
            devices[m - 1].position = position + 1
            simulation.clock.answered(m, position + 1)
            rounds.append((t, m, position))
            run.round_ends(*self._sizes(m, _width(t), _width(position)))
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


UPLINKS = ("uplink", "uplink plus")
"""The names of the streams of uplink noise, by array; they are those of `methods/`."""

Rounds = Sequence[Turns]
"""The rounds of a block, for every run."""


class Writer:
    """Writes the rounds of devices of one architecture into their tape; `slots[m - 1]` is device m's place in `kin`."""

    def __init__(
        self, simulations: Sequence[Simulation], kin: Kin, heads: Heads, tape: Tape, slots: Sequence[int]
    ) -> None:
        self._tape, self._slots = tape, np.array(slots)
        self._generator = torch.Generator(tape.out["Delta"].device)
        runs, plan = [simulation.server_run for simulation in simulations], simulations[0].server_run.plan
        self._configs, self._plan = [run.config for run in runs], plan
        self._offsets = np.array([columns.start for columns in runs[0].server.table.columns])
        self._lams = np.array([per_device("train.lam", config.train.lam, plan.M) for config in self._configs])
        self._steps = [[device.method.steps for device in simulation.devices] for simulation in simulations]
        self._head_steps = [run.server.method.head_rule.steps for run in runs]
        self._uplinks = [uplink_of(run.config, run.plan, noise_of(run.config)) for run in runs]
        self._u, self._u_0 = _Rows(tape, "u", kin.flat), _Rows(tape, "u_0", heads.flat or kin.flat)
        # the names of these streams, and the numbers of directions in them, are those of `methods/`
        self._streams = [
            [numbered((config.train.seed, "direction", m)) for m in range(plan.M + 1)] for config in self._configs
        ]

    def write(self, rounds: Rounds) -> None:
        """Write `rounds` into the first rows of the tape."""
        found = [self._places(r, turns) for r, turns in enumerate(rounds)]
        for name in found[0]:
            self._copy(name, torch.from_numpy(np.stack([places[name] for places in found], 1)))
        N = self._tape.shape.N
        self._copy("noise", torch.from_numpy(np.stack([turns.noise[:, :N] for turns in rounds], 1)))
        for r, turns in enumerate(rounds):
            streams, both = self._streams[r], zip(turns.m.tolist(), turns.position.tolist(), strict=True)
            self._u.draw(r, [(streams[m], position) for m, position in both], self._generator)
            self._u_0.draw(r, [(streams[0], t) for t in turns.t.tolist()], self._generator)
        self._u.normalise(len(rounds[0].t))
        self._u_0.normalise(len(rounds[0].t))
        if "v" in self._tape.given:
            self._copy("v", _stacked(rounds, self._embedding_directions))
        if "up" in self._tape.given:
            self._copy("up", _stacked(rounds, self._uplink_noise))
        self._tape.prepare()

    def _places(self, r: int, turns: Turns) -> dict[str, NDArray[Any]]:
        """Where the devices, batches and columns of a run's rounds are, and their radii and steps."""
        plan, i, both = self._plan, turns.m - 1, list(zip(turns.m.tolist(), turns.t.tolist(), strict=True))
        steps, head_steps = self._steps[r], self._head_steps[r]
        return {
            "slot": self._slots[i],
            "start": (r * plan.M + i) * (plan.D + plan.B) + turns.position * plan.B % plan.D,
            "offset": self._offsets[i],
            "lam": self._lams[r][i],
            "eta": np.array([steps[m - 1].at(t) for m, t in both]),
            "eta_0": np.array([head_steps.at(t) for _, t in both]),
        }

    def _embedding_directions(self, r: int, m: int, position: int) -> Tensor:
        q, B, k = self._tape.given["v"].shape[2:]
        return torch.stack(list(directions(self._streams[r][m](position), q, (B, k))))

    def _uplink_noise(self, r: int, m: int, position: int) -> Tensor:
        arrays, B, k = self._tape.given["up"].shape[2:]
        link = self._uplinks[r]
        names = [(name, m, position) for name in UPLINKS[:arrays]]
        return torch.stack([link.sigma_h * torch.from_numpy(link.gaussian((B, k), name)) for name in names])

    def _copy(self, name: str, values: Tensor) -> None:
        place = self._tape.given[name]
        place[: len(values)].copy_(values.pin_memory() if place.is_cuda else values, non_blocking=True)


class _Rows:
    """The directions of one kind on a tape, [n, R, K, d], or none; views of the rows are made once."""

    def __init__(self, tape: Tape, name: str, flat: Flat) -> None:
        self._all, self._flat = tape.given.get(name), flat
        self._rows = [] if self._all is None else [[list(row) for row in rows] for rows in self._all]

    def draw(self, r: int, wanted: Sequence[tuple[Callable[[int], int], int]], generator: torch.Generator) -> None:
        """Draw the K directions of every round of run r, numbered from number*K on.

        `wanted` has for each round the stream, which gives the seeds of directions by number, and the number.
        """
        draw = self._flat.draw
        for rows, (stream, number) in zip(self._rows, wanted, strict=False):
            own = rows[r]
            first = number * len(own)
            for j, row in enumerate(own):
                draw(row, stream(first + j), generator)

    def normalise(self, n: int) -> None:
        """Turn what was drawn for the first n rounds into directions."""
        if self._all is not None:
            normalise(self._all[:n], self._flat)


def _stacked(rounds: Rounds, one: Callable[[int, int, int], Tensor]) -> Tensor:
    """What `one` gives for every run, device and position, [n, R, ...]."""
    found = []
    for r, turns in enumerate(rounds):
        both = zip(turns.m.tolist(), turns.position.tolist(), strict=True)
        found.append(torch.stack([one(r, m, position) for m, position in both]))
    return torch.stack(found, 1)
