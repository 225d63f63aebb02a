"""Counting labels with noise: what it costs, that it is drawn and charged once, and what becomes of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.plans import asked

from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.accountant import fold, gaussian_mu
from dpzv.privacy.gdp import mu_of
from dpzv.privacy.label_counts import LabelCounts, frequencies
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.noise import ExactNoise, SeededNoise
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.planning import make_plan
from dpzv.privacy.statement import parts_of, read_ledger, spent
from dpzv.runtime.gate import Gate

Y = np.array([0] * 300 + [1] * 200)


def ledger_of(path: Path, plan: PrivacyPlan, *, new: bool) -> Ledger:
    common: dict[str, Any] = {
        "plan": plan,
        "data_fingerprint": "d",
        "noise_source": "exact",
        "ids_of": lambda m, position: np.arange(plan.B),
    }
    return Ledger.create(path, **common) if new else Ledger.open(path, **common)


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_its_share_is_paid_by_the_releases_and_the_whole_stays(neighbours: str) -> None:
    plan = make_plan(asked(base_share=0.04, neighbours=neighbours))
    (counts,) = (event for event in plan.events if isinstance(event, LabelCounts))
    whole = mu_of(1.0, 1e-6)
    moved = math.sqrt(2) if neighbours == "replace-one" else 1.0  # two counts change by one each, or one does
    assert moved / counts.sigma == pytest.approx(0.2 * whole, rel=1e-6)
    assert plan.mu == pytest.approx(math.sqrt(0.96) * whole, rel=1e-6)
    assert gaussian_mu(plan.cost, neighbours) == pytest.approx(whole, rel=1e-6)  # type: ignore[arg-type]
    assert gaussian_mu(plan.cost, neighbours) <= whole  # type: ignore[arg-type]
    assert {part.name for part in parts_of(plan)} == {"label counts", "releases"}


def test_a_sampled_head_and_starts_pay_their_part_too() -> None:
    shares: dict[str, Any] = {"starts": ("dp-pca",), "start_share": 0.1, "base_share": 0.05}
    head: dict[str, Any] = {"head_rule": "dp-sgd", "head_batch": 50, "head_steps": 20, "head_share": 0.3}
    plan, without = make_plan(asked(**shares, **head)), make_plan(asked(**{**shares, "base_share": 0.0}, **head))
    assert plan.mu < without.mu
    assert len(plan.events) == len(without.events) + 1 == 4
    with pytest.raises(ConfigError, match="together must stay below 1"):
        make_plan(asked(**{**shares, "base_share": 0.7}, **head))


def test_what_no_account_covers_is_refused() -> None:
    with pytest.raises(PrivacyRefused, match=r"public number as head\.base"):
        make_plan(asked(base_share=0.01, accounting="paper"))


def test_labels_are_counted_once_and_found_again(tmp_path: Path) -> None:
    plan, path = make_plan(asked(base_share=0.05)), tmp_path / "ledger.sqlite"
    with ledger_of(path, plan, new=True) as ledger:
        counts = Gate(ledger, ExactNoise()).label_counts(Y, 2)
        assert Gate(ledger, ExactNoise()).label_counts(Y, 2) == counts
    with ledger_of(path, plan, new=False) as ledger:  # as after a crash
        assert Gate(ledger, ExactNoise()).label_counts(Y, 2) == counts
        (charged,) = ledger.charged
        assert isinstance(charged, LabelCounts)
        with pytest.raises(PrivacyRefused, match="counted before"):
            ledger.charge(msgspec.structs.replace(charged, counts=(1.0, 2.0)))
        with pytest.raises(PrivacyRefused, match="as planned"):
            ledger.charge(LabelCounts(sigma=1.0, counts=counts))
        assert len(ledger.charged) == 1
    assert all((count * 2.0**36).is_integer() for count in counts)
    assert read_ledger(path).plan == plan
    assert "label counts for the base rate, each with noise of" in spent([path]).text()


def test_a_run_that_died_before_the_charge_has_used_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, path = make_plan(asked(base_share=0.05)), tmp_path / "ledger.sqlite"
    with ledger_of(path, plan, new=True) as ledger, monkeypatch.context() as broken:
        broken.setattr(Ledger, "charge", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            Gate(ledger, ExactNoise()).label_counts(Y, 2)
    with ledger_of(path, plan, new=False) as ledger:
        assert ledger.charged == []


def test_the_noise_has_the_planned_deviation(tmp_path: Path) -> None:
    plan = make_plan(asked(base_share=0.05))
    (event,) = (event for event in plan.events if isinstance(event, LabelCounts))
    y = np.repeat(np.arange(400), 3)  # so many classes that one count of all of them shows the deviation
    for i, noise in enumerate((ExactNoise(), SeededNoise(3))):
        with ledger_of(tmp_path / f"{i}.sqlite", plan, new=True) as ledger:
            off = np.array(Gate(ledger, noise).label_counts(y, 400)) - 3
        assert abs(off.mean()) < 5 * event.sigma / 20
        assert off.std() == pytest.approx(event.sigma, rel=0.2)  # five standard errors of 3.5 %, and some more


def test_without_noise_or_without_a_plan_for_it() -> None:
    assert fold([LabelCounts(sigma=0.0)]).gaussian[0].square == math.inf
    plan = make_plan(asked())
    assert plan.mu_base == 0
    assert not any(isinstance(event, LabelCounts) for event in plan.events)


def test_frequencies_use_the_public_number_of_records_and_stay_inside() -> None:
    assert frequencies((300, 200), 500) == pytest.approx([0.6, 0.4])
    assert frequencies((310, 210), 500) == pytest.approx([0.6, 0.4])  # noise that both share changes nothing
    assert frequencies((-50, 600), 500) == pytest.approx([1 / 500, 1 - 1 / 500])
    assert sum(frequencies((100, 250, 150), 500)) == pytest.approx(1)
