"""Every device has its share of the rounds, however fast it is, so the noise is that of devices that take turns."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpzv import config as configuration
from dpzv import recipes
from dpzv.data.schedule import BatchSchedule
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.run import resume, start
from dpzv.runtime.run_plan import plan_of

T, SEED = 14, 0
SETTINGS = (
    f"train.rounds={T}",
    f"train.seed={SEED}",
    "train.eval_every=100",
    "head.rule=frozen",
    "head.refit_steps=4",
    "noise.source=seeded",
    "runtime.threads=1",
)


def config_of(*assignments: str) -> configuration.Config:
    tree = recipes.tree("digits")
    for assignment in (*SETTINGS, *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


@pytest.mark.parametrize("compute", ["[0.01, 1.0, 1.0, 0.02]", "exponential 0.01"])
def test_all_devices_have_equal_shares_and_the_noise_of_turns(compute: str, tmp_path: Path) -> None:
    config = config_of(f"devices.compute={compute}")
    assert start(config, tmp_path / "run", lambda snapshot: snapshot.t < 9, math.inf) is None
    assert resume(tmp_path / "run", lambda snapshot: True, math.inf) is not None
    found = read_ledger(tmp_path / "run")
    assert found.releases == T
    assert sorted(found.turns.values()) == [3, 3, 4, 4]
    assert found.plan.sigma_dp == plan_of(config_of(), found.plan.D, 4).sigma_dp
    taken = np.zeros(found.plan.D, int)
    for m, rounds in found.turns.items():
        for position in range(rounds):
            taken[BatchSchedule(SEED, m, found.plan.B, found.plan.D).ids(position)] += 1
    assert taken.max() <= found.plan.participations  # no record passes its cap, so all contribute to every round
