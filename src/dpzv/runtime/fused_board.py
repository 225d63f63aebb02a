"""The tables, labels and batches of several runs in one tensor each, and the numbers in which the runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.runtime.simulate import Simulation
from dpzv.sensitivity import euclidean_clip
from dpzv.terms import HeadRuleName

__all__ = ["Board", "Knobs", "board_of", "knobs_of"]


@dataclass(frozen=True, slots=True)
class Board:
    """What the server of every run holds: `table` [R*D, k_1+...+k_M], labels `y` [D] and batches `walk` [R*M*(D+B)]."""

    table: Tensor
    y: Tensor
    walk: Tensor
    R: int
    D: int


@dataclass(frozen=True, slots=True)
class Knobs:
    """What may differ from run to run, [R] each, and what may not.

    `C` clips one record's answer, over all K directions together; `C_h` clips embeddings; `lam_0` is the radius of the
    head's own steps; `momentum` and `momentum_0` are those of devices and head; `C_0` clips a record's gradient in w_0;
    `halves` says whether embeddings are sent in half precision.
    """

    C: Tensor
    C_h: Tensor
    lam_0: Tensor
    momentum: Tensor
    momentum_0: Tensor
    C_0: Tensor
    B: int
    head_rule: HeadRuleName
    losses_back: bool
    head_batch: int
    halves: bool


def board_of(simulations: Sequence[Simulation]) -> Board:
    """What the servers hold. Their tables become views of one tensor, so that nothing is stored or copied twice."""
    first = simulations[0].server_run
    stored = [simulation.server_run.server.table.h for simulation in simulations]
    tables = torch.stack([table for table in stored if isinstance(table, Tensor)])
    walks = []
    for simulation, table in zip(simulations, tables, strict=True):
        run = simulation.server_run
        if not torch.equal(run.server.y_train, first.server.y_train):
            raise ConfigError("runs that advance together must be on the same records; run them one by one.")
        run.server.table.h = table
        walks += [np.concatenate([schedule.order, schedule.order[: schedule.B]]) for schedule in run.schedules]
    walk = torch.from_numpy(np.concatenate(walks)).to(tables.device, torch.int64)
    return Board(tables.flatten(0, 1), first.server.y_train, walk, len(simulations), first.plan.D)


def knobs_of(simulations: Sequence[Simulation]) -> Knobs:
    """The numbers in which the runs may differ, and those that they share."""
    first, accelerator = simulations[0].server_run, simulations[0].server_run.server.table.h.device
    configs = [simulation.server_run.config for simulation in simulations]
    K = first.server.method.K

    def numbers(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=accelerator)

    lams = [config.train.lam for config in configs]
    return Knobs(
        C=numbers([euclidean_clip(simulation.server_run.server.method.C, K) for simulation in simulations]),
        C_h=numbers([config.privacy.C_h for config in configs]),
        lam_0=numbers([lam[0] if isinstance(lam, tuple) else lam for lam in lams]),
        momentum=numbers([config.train.momentum for config in configs]),
        momentum_0=numbers([config.head.momentum for config in configs]),
        C_0=numbers([config.head.C_0 for config in configs]),
        B=first.plan.B,
        head_rule=first.config.head.rule,
        losses_back=first.server.method.C == float("inf"),
        head_batch=first.plan.head_batch,
        halves=first.config.codec.name == "float16",
    )
