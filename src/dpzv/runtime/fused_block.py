"""Writes what the rounds of a block need into tapes: places, steps, noise and directions, all from named streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv.config import per_device
from dpzv.methods.vfl_czofo import directions
from dpzv.rng import numbered
from dpzv.runtime.assemble_device import uplink_of
from dpzv.runtime.fused_book import Turns
from dpzv.runtime.fused_devices import Kin
from dpzv.runtime.fused_flat import Flat
from dpzv.runtime.fused_head import Heads
from dpzv.runtime.fused_tape import Tape, normalise
from dpzv.runtime.run_plan import noise_of
from dpzv.runtime.simulate import Simulation

__all__ = ["Writer"]

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
