"""Runs whose rounds are computed in blocks, on CUDA from graphs: thousands of rounds a second, with simulated noise.

Several runs of a sweep (seeds, budgets, steps, clips) may advance together, with one operation for all of them. A run
writes what it would write without fusing: ledger, transcript, metrics, checkpoints and summary. Only hashes of frames
are missing, since no frame is made.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dpzv.errors import ConfigError
from dpzv.runtime.fused_engine import Engine
from dpzv.runtime.fused_kinds import refuse_unfusable
from dpzv.runtime.journal import Observer
from dpzv.runtime.simulate import Simulation

__all__ = ["run_fused"]

LOOK = 0.2
"""Seconds of rounds, about, between two calls of the observer."""


def run_fused(
    simulations: Sequence[Simulation], observe: Observer, max_seconds: float = float("inf")
) -> list[dict[str, Any]] | None:
    """Run open simulations together to their end and return their summaries, or `None` if the observer stopped them.

    They must be alike (`fused_kinds.alike`) and have made the same number of rounds. Runs that were stopped can be
    resumed.
    """
    first = simulations[0].server_run
    for simulation in simulations:
        refuse_unfusable(simulation.server_run.config)
        if simulation.views:
            raise ConfigError('fused rounds keep no views of devices; set runtime.kind = "simulate" to keep them.')
        simulation.begin(observe)
    engine, every, saved, chunk = Engine(simulations), first.config.train.eval_every, time.monotonic(), 16
    while not first.done and first.journal.seconds < max_seconds:
        began, due = time.monotonic(), min(every - first.server.t % every, first.plan.T - first.server.t)
        engine.advance(min(due, chunk))
        chunk = max(16, int(min(due, chunk) * LOOK / (time.monotonic() - began)))
        if first.server.t % every == 0 or first.done:
            engine.restore()
            for simulation in simulations:
                simulation.evaluate()
        stopped = not observe(first.journal.snapshot("rounds"))
        if stopped or time.monotonic() - saved > first.config.runtime.checkpoint_seconds:
            engine.restore()
            for simulation in simulations:
                simulation.save()
            saved = time.monotonic()
        if stopped:
            return None
    engine.restore()
    return [simulation.finish(observe) for simulation in simulations]
