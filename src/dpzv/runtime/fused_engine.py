"""Runs whose rounds are computed in blocks, on CUDA from graphs: thousands of rounds a second, with simulated noise.

A block is planned, charged and drawn in main memory, computed, and then written down. Several runs of a sweep (seeds,
budgets, steps, clips) may advance together, with one operation for all of them. A run writes what it would write
without fusing: ledger, transcript, metrics, checkpoints and summary. Only hashes of frames are missing, since no frame
is made.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.methods.dpsgd import DPSGD
from dpzv.runtime.fused_board import board_of, knobs_of
from dpzv.runtime.fused_devices import Kin, architecture
from dpzv.runtime.fused_graph import Replay
from dpzv.runtime.fused_head import FusedHeadSteps, Heads
from dpzv.runtime.fused_host import FusedRun, Turns, Writer
from dpzv.runtime.fused_kinds import refuse_kind
from dpzv.runtime.fused_round import HEAD_MOVES, ROUNDS
from dpzv.runtime.fused_tape import Tape, TapeShape
from dpzv.runtime.server_run import Observer
from dpzv.runtime.simulate import Simulation

__all__ = ["Engine", "run_fused"]

BLOCK = 64
"""The most rounds in a block."""

LOOK = 0.2
"""Seconds of rounds, about, between two calls of the observer."""

FOUND = ("Delta", "clipped", "zeroed")

DRAWN = 1 << 26
"""The most numbers that are drawn ahead for a block."""


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """Devices of one architecture, with the tape of their rounds, what writes it and what computes it."""

    kin: Kin
    tape: Tape
    writer: Writer
    rounds: Replay


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    """A block that is being computed: the runs' turns, each round's family and row, and the tensors that will hold
    each family's results.
    """

    turns: list[Turns]
    places: list[tuple[int, int]]
    found: list[dict[str, Tensor]]
    done: torch.cuda.Event | None


class Engine:
    """Simulations that are open, are alike (`fused_kinds.py`) and have made the same number of rounds."""

    def __init__(self, simulations: Sequence[Simulation]) -> None:
        self._simulations, self._runs = simulations, [FusedRun(simulation) for simulation in simulations]
        servers = [simulation.server_run.server for simulation in simulations]
        if len({server.t for server in servers}) > 1:
            raise ConfigError("runs that advance together must have made the same number of rounds; run them apart.")
        rules, plan = [server.method.head_rule for server in servers], simulations[0].server_run.plan
        self.heads = Heads(rules, servers[0].method.loss)
        self._board, self._knobs = board_of(simulations), knobs_of(simulations)
        self._accelerator = self._board.table.device
        self._pool = torch.cuda.graph_pool_handle() if self._accelerator.type == "cuda" else None
        keys = list(map(architecture, simulations[0].devices))
        kinds = list(dict.fromkeys(keys))
        self._family_of = [kinds.index(key) for key in keys]
        self.families = [self._family(g) for g in range(len(kinds))]
        self._n = min(family.tape.n for family in self.families)
        self._head: FusedHeadSteps | None = None
        if plan.head_steps:
            each = math.ceil(plan.head_steps / max(plan.T, 1))
            moving = [rule for rule in rules if isinstance(rule, DPSGD)]
            steps = {"n": self._n * each, "planned": plan.head_steps * len(rules)}
            self._head = FusedHeadSteps(moving, self.heads, self._board, self._knobs, **steps)
            self._head_steps = Replay(self._head, self._accelerator, self._pool)

    def advance(self, n: int) -> None:
        """Make n rounds of every run, and write them down; while a block is computed, the next one is prepared."""
        queued: _Queued | None = None
        while n:
            count = min(n, self._n)
            block = self._queue(count)
            if queued is not None:
                self._settle(queued)
            queued, n = block, n - count
        if queued is not None:
            self._settle(queued)

    def restore(self) -> None:
        """Write the weights back to where evaluations and checkpoints read them."""
        self.heads.restore()
        for family in self.families:
            family.kin.restore()

    def _family(self, g: int) -> _Family:
        """The devices of the g-th architecture."""
        simulations, first = self._simulations, self._simulations[0].server_run
        own = [i for i, other in enumerate(self._family_of) if other == g]
        momentum = any(simulation.server_run.config.train.momentum for simulation in simulations)
        kin = Kin([[simulation.devices[i] for i in own] for simulation in simulations], momentum=momentum)
        tape = Tape(self._shape(kin, first.server.table.widths[own[0]]), self._board, kin.w.dtype)
        slots = [own.index(i) if i in own else -1 for i in range(len(self._family_of))]
        writer = Writer(simulations, kin, self.heads, tape, slots)
        body = ROUNDS[first.config.train.method](kin, self.heads, self._board, self._knobs, tape)
        return _Family(kin, tape, writer, Replay(body, self._accelerator, self._pool))

    def _shape(self, kin: Kin, width: int) -> TapeShape:
        """The tape's sizes: a block has as many rounds as its numbers leave room for."""
        run, head = self._simulations[0].server_run, self.heads
        method, body, move = run.server.method, ROUNDS[run.config.train.method], HEAD_MOVES[run.config.head.rule]
        q, head_K = method.q if body.perturbs else 0, move.directions(method.K)
        shape = TapeShape(
            n=1,
            R=len(self._simulations),
            K=method.K,
            N=method.numbers(run.plan.B, width),
            B=run.plan.B,
            S=kin.S,
            width=width,
            d=kin.flat.d if body.walks else 0,
            points=max(q + 1, method.arrays, move.points),
            pairs=method.facts.pairs and method.K == 1,
            arrays=method.arrays if run.config.noise.where == "uplink" and run.plan.sigma_h else 0,
            q=q,
            head_K=head_K,
            head_d=head.flat.d if head.flat and head_K else 0,
        )
        return replace(shape, n=max(1, min(BLOCK, DRAWN // shape.numbers)))

    def _queue(self, n: int) -> _Queued:
        """Plan and charge n rounds of every run, draw what they need, and start to compute them."""
        turns = [run.plan(n) for run in self._runs]
        families = [self._family_of[m - 1] for m in turns[0].m.tolist()]
        for other in turns[1:]:
            same = turns[0].head_steps == other.head_steps and turns[0].t[0] == other.t[0]
            if not same or families != [self._family_of[m - 1] for m in other.m.tolist()]:
                raise ConfigError("runs that advance together must have the same order of devices; run them apart.")
        rows: dict[int, list[int]] = defaultdict(list)
        places = []
        for i, g in enumerate(families):
            places.append((g, len(rows[g])))
            rows[g].append(i)
        for g, some in rows.items():
            self.families[g].writer.write([one if len(some) == n else one.some(some) for one in turns])
        head_steps = turns[0].head_steps
        if self._head is not None and any(head_steps):
            each = zip(turns[0].t.tolist(), head_steps, strict=True)
            self._head.draw([(t, j) for t, steps in each for j in range(steps)])
        self._play(places, head_steps)
        found, done = [], None
        for family in self.families:
            found.append({name: _fetched(rows) for name, rows in family.tape.found(self._knobs.C).items()})
        if self._accelerator.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return _Queued(turns, places, found, done)

    def _play(self, places: list[tuple[int, int]], head_steps: Sequence[int]) -> None:
        """Compute the rounds at `places` (family and row), each followed by so many head steps."""
        taken = 0
        for (g, steps), same in itertools.groupby(
            zip(places, head_steps, strict=True), lambda one: (one[0][0], one[1])
        ):
            rows = [row for (_, row), _ in same]
            if not steps:
                self.families[g].rounds.play(rows[0], len(rows))
                continue
            for row in rows:
                self.families[g].rounds.play(row, 1)
                self._take(taken, steps)
                taken += steps

    def _take(self, first: int, steps: int) -> None:
        """Take so many head steps of those drawn."""
        assert self._head is not None
        for long, same in itertools.groupby(range(first, first + steps), self._head.alone):
            some = list(same)
            if not long:
                self._head_steps.play(some[0], len(some))
                continue
            for i in some:
                self._head.longer(i)

    def _settle(self, queued: _Queued) -> None:
        """Wait for a block, and write down what its rounds released."""
        if queued.done is not None:
            queued.done.synchronize()
        found = [{name: rows.numpy() for name, rows in one.items()} for one in queued.found]
        for r, (run, turns) in enumerate(zip(self._runs, queued.turns, strict=True)):
            if len(found) == 1:
                Delta, clipped, zeroed = (list(found[0][name][: len(turns.t), r]) for name in FOUND)
            else:
                Delta, clipped, zeroed = ([found[g][name][i, r] for g, i in queued.places] for name in FOUND)
            run.settle(turns, Delta, np.array(clipped), np.array(zeroed))


def _fetched(rows: Tensor) -> Tensor:
    """A copy in main memory, which may still be under way."""
    if not rows.is_cuda:
        return rows.clone()
    return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows, non_blocking=True)


def run_fused(
    simulations: Sequence[Simulation], observe: Observer, max_seconds: float = float("inf")
) -> list[dict[str, Any]] | None:
    """Run open simulations together to their end and return their summaries, or `None` if the observer stopped them.

    They must be alike (`fused_kinds.alike`) and have made the same number of rounds. Runs that were stopped can be
    resumed.
    """
    first = simulations[0].server_run
    for simulation in simulations:
        refuse_kind(simulation.server_run.config)
        if simulation.views:
            raise ConfigError('fused rounds keep no views of devices; set runtime.kind = "simulate" to keep them.')
        simulation.begin(observe)
    engine, every, chunk = Engine(simulations), first.config.train.eval_every, 16
    while not first.done and first.journal.seconds < max_seconds:
        began, due = time.monotonic(), min(every - first.server.t % every, first.plan.T - first.server.t)
        engine.advance(min(due, chunk))
        chunk = max(16, int(min(due, chunk) * LOOK / (time.monotonic() - began)))
        if first.evaluation_due:
            engine.restore()
            for simulation in simulations:
                simulation.evaluate()
        stopped = not observe(first.journal.snapshot("rounds"))
        if stopped or first.checkpoint_due:
            engine.restore()
            for simulation in simulations:
                simulation.save()
        if stopped:
            return None
    engine.restore()
    return [simulation.finish(observe) for simulation in simulations]
