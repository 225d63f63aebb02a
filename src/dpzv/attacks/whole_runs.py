"""An audit of whole runs: starts, fill, rounds, a crash in the middle and its resume, by devices that follow the rules.

The two worlds differ in the label of one record with large features. Every run is one of its own with noise of its own,
simulated or between parties that talk, and is attacked with what its devices saw. That is far slower than repeating
releases, so that few runs show gross faults only; but nothing is left out, and rivals can be audited, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dpzv.attacks.crashing_runs import CANARY, crashing_run, made_up, small
from dpzv.attacks.lower_bound import Evidence
from dpzv.attacks.readings import gives_gradients, read
from dpzv.attacks.replay import Coalition, Turn
from dpzv.attacks.target import Target
from dpzv.models.losses import Loss, per_record_loss
from dpzv.privacy.noise import NoiseSource, SeededNoise
from dpzv.privacy.statement import read_ledger
from dpzv.rng import seed_of
from dpzv.runtime.device_view import read_views
from dpzv.runtime.server_head import first_head

__all__ = ["whole_runs"]

Run = Callable[[Target, int, NoiseSource, Path], object]
"""Runs a world of a target with this noise in a new folder."""

LABELS = 2
"""The canary has one of the first two labels."""


def whole_runs(target: Target, n: int, run: Run = crashing_run) -> Evidence:
    """The canary's log-likelihood ratio in `n` runs of each world, for somebody who knows all but its label.

    `run` makes one of them in a new folder: in simulation, or between parties that talk (`networked_run`).
    """
    scores = np.empty((LABELS, n))
    with tempfile.TemporaryDirectory() as place:
        for world in range(LABELS):
            for j in range(n):
                folder = Path(place) / f"{world}-{j}"
                run(target, world, _noise(target.noise, world, j), folder)
                plan = read_ledger(folder / "ledger.sqlite").plan
                scores[world, j] = _score(target, folder, plan.sigma_dp)
    return Evidence(scores[0], scores[1], 0.0, plan.cost, plan.delta_dp, plan.epsilon_replace_one)


def _noise(noise: NoiseSource, world: int, j: int) -> NoiseSource:
    """Noise of its own for each run: secret noise is; seeded noise gets another seed, whose name is a format."""
    return SeededNoise(seed_of("whole runs", world, j)) if isinstance(noise, SeededNoise) else noise


def _score(target: Target, folder: Path, sigma_dp: float) -> float:
    coalition = Coalition.of(read_views(folder))
    config, loss = small(target.config), per_record_loss(target.task)
    records = made_up(target, 0).server_records()
    head, y = first_head(config, records, coalition.width, ()), records.y_train
    if gives_gradients(config.train.method):
        return sum(_by_gradient(coalition, head, loss, turn) for turn in coalition.turns())
    (readings,) = read(coalition, [head], loss, LABELS, sigma_dp)
    labels = y.astype(np.int64)[readings.ids][:, :, None]
    others = np.take_along_axis(readings.adds, labels, axis=2).sum(axis=(1, 2), dtype=np.float64)
    at = readings.ids == CANARY
    low, high = (np.sum(np.where(at, readings.adds[:, :, label], 0.0), axis=1) for label in range(LABELS))
    left = readings.total - (others - low)
    return float(np.sum((left - (low + high) / 2) * (high - low)))


def _by_gradient(coalition: Coalition, head: torch.nn.Module, loss: Loss, turn: Turn) -> float:
    """The canary's score in one turn: where its returned gradient lies between those of both labels."""
    if CANARY not in turn.ids:
        return 0.0
    place, columns = int(np.flatnonzero(turn.ids == CANARY)[0]), coalition.columns[turn.m]
    rows = torch.from_numpy(coalition.rows()[[CANARY] * LABELS])
    rows[:, columns] = torch.from_numpy(turn.h[0][[place] * LABELS])
    rows.requires_grad_()
    losses = loss(head(rows), torch.arange(LABELS))
    (gradients,) = torch.autograd.grad(losses.sum(), rows)
    low, high = gradients[:, columns].double().numpy()
    came = turn.Delta.reshape(len(turn.ids), -1)[place]
    return float(np.sum((came - (low + high) / 2) * (high - low)))
