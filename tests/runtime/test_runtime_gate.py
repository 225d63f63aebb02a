"""The gate: it releases what was planned. Head steps are paid for first, and few are at stake in a crash."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dpzv import config as configuration
from dpzv import recipes
from dpzv.data import catalogue
from dpzv.errors import PrivacyRefused
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.noise import ExactNoise, NoiseSource, SeededNoise
from dpzv.privacy.planning import make_plan
from dpzv.protocol.messages import Pending
from dpzv.runtime import checkpoint
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.gate import BLOCK, SHARE, Gate
from dpzv.runtime.run import run
from tests.plans import asked

D, B, T = 400, 20, 300


def gate_of(folder: Path, steps: int, noise: NoiseSource, *, again: bool = False, directions: int = 1) -> Gate:
    """A gate on a new ledger for `steps` head steps in T rounds, or on the one that is there."""
    plan = make_plan(
        asked(
            B=B,
            D=D,
            T=T,
            participations=T * B // D,
            head_rule="dp-sgd",
            head_batch=D,
            head_steps=steps,
            head_share=0.4,
            directions=directions,
        )
    )
    make = Ledger.open if again else Ledger.create
    ledger = make(
        folder / "ledger.sqlite",
        plan=plan,
        data_fingerprint="records",
        noise_source=noise.name,
        ids_of=lambda m, position: np.arange(position * B, position * B + B) % D,
    )
    return Gate(ledger, noise)


@pytest.mark.parametrize("steps", [7, 100, 250, 3000])
def test_every_planned_step_is_taken_and_few_are_paid_for_ahead(steps: int, tmp_path: Path) -> None:
    gate, taken = gate_of(tmp_path, steps, ExactNoise()), 0
    with gate.ledger as ledger:
        for t in range(1, T + 1):
            taken += gate.head_steps(t)
            assert taken == steps * t // T
            assert taken <= ledger.head_steps <= taken + min(BLOCK, max(1, steps // SHARE))
    assert taken == steps


def test_a_crash_forfeits_what_was_at_stake_and_no_more(tmp_path: Path) -> None:
    steps = 100
    gate = gate_of(tmp_path, steps, ExactNoise())
    with gate.ledger as ledger:
        taken = sum(gate.head_steps(t) for t in range(1, 31))
        assert gate.at_stake == pytest.approx(ledger.head_steps / steps)
        gate.kept()
        assert gate.at_stake == 0
        lost = sum(gate.head_steps(t) for t in range(31, 37))
        at_stake = gate.at_stake
        assert at_stake >= lost / steps == 0.02
    again = gate_of(tmp_path, steps, ExactNoise(), again=True)
    with again.ledger as ledger:
        assert again.at_stake == 0  # the head is that of the checkpoint: nothing more can be lost
        taken += sum(again.head_steps(t) for t in range(37, T + 1))
        assert ledger.head_steps <= steps
    assert taken >= steps - round(steps * at_stake)


def test_steps_whose_noise_is_repeated_are_never_at_stake(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, 100, SeededNoise(0))
    with gate.ledger:
        assert sum(gate.head_steps(t) for t in range(1, 200)) > 60
        assert gate.at_stake == 0


@pytest.mark.parametrize(
    ("numbers", "divisor", "told"),
    [
        (1, B, "messages of K=3 numbers, got 1; release what was planned"),
        (4, B, "messages of K=3 numbers, got 4"),
        (3, 1, "got numbers divided by 1; release what was planned"),
    ],
)
def test_only_what_was_planned_is_released(numbers: int, divisor: int, told: str, tmp_path: Path) -> None:
    """More numbers than K, fewer, or other than means over the batch; nothing of it is counted."""
    gate = gate_of(tmp_path, 100, ExactNoise(), directions=3)
    planned = Pending(1, 1, 0, B, np.zeros(3, np.int64), gate.plan.clip / 2**40, B)
    with gate.ledger as ledger:
        with pytest.raises(PrivacyRefused, match=told):
            gate.submit(replace(planned, totals=np.zeros(numbers, np.int64), divisor=divisor), b"frame")
        assert (ledger.releases, ledger.unit_mu_squared) == (0, 0)
        assert gate.submit(planned, b"frame").Delta.shape == (3,)
        assert ledger.releases == 1


@pytest.mark.parametrize(("source", "least", "most"), [("exact", 50, 60), ("seeded", 2, 4)])
def test_a_checkpoint_is_written_before_many_steps_are_at_stake(
    source: str, least: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = recipes.tree("digits")
    for change in (
        f"noise.source={source}",
        "head.rule=dp-sgd",
        "head.steps=100",
        "head.batch=100",
        "train.rounds=100",
        "head.refit_steps=4",
    ):
        tree = configuration.merge(tree, configuration.set_key(change))
    config = configuration.parse(configuration.merge(tree, {"runtime": {"checkpoint_seconds": 1e6}}))
    saved, save = [], checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *what: (saved.append(what), save(*what)))
    data = catalogue.load("digits")
    run(config, data, partial(make_networks, config, data), tmp_path / "out", lambda snapshot: True)
    assert least <= len(saved) <= most
