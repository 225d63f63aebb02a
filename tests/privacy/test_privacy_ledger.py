"""The ledger: caps, repeats, rebuilding, refusals."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from dpzv.errors import PrivacyRefused
from dpzv.privacy.events import ReleaseEvent, StartEvent, unit_mu
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.plan import PlanRequest, PrivacyPlan, epsilon_spent, make_plan, start_event
from dpzv.rng import numpy_generator

D, B, M, T = 23, 5, 2, 40


def plan_of(**changes: Any) -> PrivacyPlan:
    asked = PlanRequest(
        epsilon=1.0,
        delta_dp=1e-6,
        accounting="exact",
        neighbours="replace-one",
        protects="records",
        C=1.0,
        B=B,
        D=D,
        M=M,
        T=T,
        participations=10,
        min_batch=2,
        head_rule="frozen",
        starts=("dp-pca", "random"),
        start_share=0.2,
    )
    return make_plan(msgspec.structs.replace(asked, **changes))


ORDER = [numpy_generator("order", m).permutation(D) for m in range(M)]


def ids_of(m: int, position: int) -> NDArray[np.int64]:
    return ORDER[m][np.arange(position * B, (position + 1) * B) % D]


def event_of(plan: PrivacyPlan, t: int) -> ReleaseEvent:
    return ReleaseEvent(t=t, m=t % M, position=t // M, B=B, C=plan.C, sigma_dp=plan.sigma_dp)


def frame(t: int) -> bytes:
    return hashlib.sha256(str(t).encode()).digest()


def create(path: Path, plan: PrivacyPlan, *, durable: bool = False) -> Ledger:
    return Ledger.create(
        path, plan=plan, data_fingerprint="data-1", noise_source="seeded", ids_of=ids_of, durable=durable
    )


def reopen(path: Path, plan: PrivacyPlan, **changes: Any) -> Ledger:
    settings: dict[str, Any] = {"data_fingerprint": "data-1", "noise_source": "seeded", "durable": False}
    return Ledger.open(path, plan=plan, ids_of=ids_of, **(settings | changes))


def write(ledger: Ledger, rounds: range) -> None:
    for t in rounds:
        ledger.write(event_of(ledger.plan, t), t / 7, frame(t))


def all_masks(ledger: Ledger) -> list[bool]:
    """Who is past its cap, record by record: the whole state of the counters that matters."""
    event = event_of(ledger.plan, 0)
    return [bool(x) for p in range(D) for x in ledger.past_cap(msgspec.structs.replace(event, position=p))]


# --- caps -----------------------------------------------------------------------------------------


def test_a_record_past_its_cap_is_named_and_not_charged(tmp_path: Path) -> None:
    plan = plan_of(participations=2)
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        for t in range(T):
            counts = np.zeros(D, dtype=int)
            for earlier in range(t):
                counts[ids_of(earlier % M, earlier // M)] += 1
            expected = counts[ids_of(t % M, t // M)] >= 2
            np.testing.assert_array_equal(ledger.past_cap(event_of(plan, t)), expected)
            write(ledger, range(t, t + 1))
        assert ledger.unit_mu_squared == pytest.approx(2 * unit_mu(event_of(plan, 0)) ** 2, rel=1e-9)
        assert ledger.unit_mu_squared <= plan.cap
        spent = epsilon_spent(plan, releases=ledger.releases, unit_mu_squared=ledger.unit_mu_squared)
        assert spent == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("changes", [{"epsilon": math.inf}, {"accounting": "paper"}])
def test_without_caps_nobody_is_past(tmp_path: Path, changes: dict[str, Any]) -> None:
    with create(tmp_path / "ledger.sqlite", plan_of(participations=1, **changes)) as ledger:
        write(ledger, range(T))
        assert not any(all_masks(ledger))


# --- the gate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sigma_dp": 1e-3}, "sigma_dp"),
        ({"sigma_dp": 0.0}, "sigma_dp"),
        ({"C": 2.0}, "C=2"),
        ({"B": 4}, "B=4"),
        ({"t": 2}, "once"),
        ({"t": 1}, "once"),
    ],
)
def test_what_was_not_planned_is_refused_and_not_counted(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        write(ledger, range(3))
        spent = ledger.unit_mu_squared
        for call in (ledger.admit, lambda event: ledger.write(event, 0.0, frame(3))):
            with pytest.raises(PrivacyRefused, match=word):
                call(msgspec.structs.replace(event_of(plan, 3), **changes))
        assert (ledger.releases, ledger.last_t, ledger.unit_mu_squared) == (3, 2, spent)


def test_more_releases_than_planned_are_refused(tmp_path: Path) -> None:
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        write(ledger, range(T))
        with pytest.raises(PrivacyRefused, match="40 releases"):
            ledger.admit(event_of(plan, T))
    nothing = create(tmp_path / "other.sqlite", plan_of(T=0, participations=0))
    with nothing, pytest.raises(PrivacyRefused, match="allows 0 releases"):
        nothing.admit(event_of(plan, 0))


@pytest.mark.parametrize("durable", [True, False])
def test_a_repeat_returns_the_stored_value_bit_for_bit(tmp_path: Path, durable: bool) -> None:
    values = [0.1, -0.0, 0.0, -1e-310, 3.0, math.pi * 1e200, math.inf]
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan, durable=durable) as ledger:
        for t, value in enumerate(values):
            assert ledger.stored(t, frame(t)) is None
            ledger.write(event_of(plan, t), value, frame(t))
        live = [ledger.stored(t, frame(t)) for t in range(len(values))]
    with reopen(tmp_path / "ledger.sqlite", plan) as ledger:
        later = [ledger.stored(t, frame(t)) for t in range(len(values))]
        assert ledger.stored(len(values), frame(0)) is None
        with pytest.raises(PrivacyRefused, match="another frame"):
            ledger.stored(3, frame(4))
    for found in (live, later):
        assert [x.hex() for x in found if x is not None] == [x.hex() for x in values]


def test_starts_are_stored_once(tmp_path: Path) -> None:
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        for _ in range(2):
            ledger.write_start(start_event(plan, 0))
        with pytest.raises(PrivacyRefused, match="as planned"):
            ledger.write_start(StartEvent(m=0, noise_multiplier=1.0))
    rows = rows_of(tmp_path / "ledger.sqlite", "SELECT * FROM starts")
    assert rows == [(0, start_event(plan, 0).noise_multiplier)]


# --- rebuilding -----------------------------------------------------------------------------------


def rows_of(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("written", [0, 1, 17, T])
@pytest.mark.parametrize("participations", [2, 10])
def test_rebuilt_counters_equal_live_ones(tmp_path: Path, written: int, participations: int) -> None:
    plan = plan_of(participations=participations)
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        write(ledger, range(written))
        live = (all_masks(ledger), ledger.unit_mu_squared, ledger.releases, ledger.last_t, ledger.run_id)
    with reopen(tmp_path / "ledger.sqlite", plan) as ledger:
        again = (all_masks(ledger), ledger.unit_mu_squared, ledger.releases, ledger.last_t, ledger.run_id)
        assert again == live
        assert ledger.plan == plan
        assert ledger.counter == 2
        write(ledger, range(written, T))
    with reopen(tmp_path / "ledger.sqlite", plan, at_least=T) as ledger:
        assert ledger.releases == T
        assert ledger.counter == 3
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_rows_say_what_was_released(tmp_path: Path) -> None:
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        write(ledger, range(3))
    found = rows_of(tmp_path / "ledger.sqlite", "SELECT * FROM releases WHERE t = 2")
    assert found == [(2, 0, 1, B, plan.sigma_dp, (2 / 7).hex(), frame(2))]


# --- refusals at the door -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"plan": plan_of(epsilon=2.0)}, "epsilon = 1.0, got 2.0"),
        ({"plan": plan_of(head_rule="joint-zo")}, "head_rule"),
        ({"data_fingerprint": "data-2"}, "data = data-1, got data-2"),
        ({"noise_source": "exact", "durable": True}, "noise.source"),
        ({"noise_source": "exact"}, "durable"),
        ({"at_least": 4}, "old copy"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    path = tmp_path / "ledger.sqlite"
    with create(path, plan_of()) as ledger:
        write(ledger, range(3))
    with pytest.raises(PrivacyRefused, match=word):
        reopen(path, **({"plan": plan_of()} | changes))
    with reopen(path, plan_of(), at_least=3) as ledger:  # and the refusal let the file go
        assert ledger.counter == 2


def test_secret_noise_needs_a_durable_ledger(tmp_path: Path) -> None:
    with pytest.raises(PrivacyRefused, match="durable"):
        Ledger.create(
            tmp_path / "ledger.sqlite",
            plan=plan_of(),
            data_fingerprint="data-1",
            noise_source="exact",
            ids_of=ids_of,
            durable=False,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyRefused, match="missing"):
        reopen(tmp_path / "ledger.sqlite", plan_of())
    assert list(tmp_path.iterdir()) == []


def test_an_existing_ledger_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    create(path, plan_of()).close()
    before = path.read_bytes()
    with pytest.raises(PrivacyRefused, match="already holds"):
        create(path, plan_of())
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["empty", "text", "pages", "other", "plan"])
def test_a_damaged_ledger_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ledger.sqlite"
    with create(path, plan_of()) as ledger:
        write(ledger, range(T))
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("this is not a ledger " * 500)
    elif damage == "pages":
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    else:
        connection = sqlite3.connect(path)
        statements = {
            "other": "PRAGMA user_version = 99",
            "plan": "UPDATE meta SET value = '{}' WHERE key = 'plan'",
        }
        connection.execute(statements[damage])
        connection.commit()
        connection.close()
    with pytest.raises(PrivacyRefused, match="cannot be read"):
        reopen(path, plan_of())


def test_a_ledger_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with create(path, plan_of()) as ledger:
        write(ledger, range(2))
        with pytest.raises(PrivacyRefused, match="in use"):
            reopen(path, plan_of())
        write(ledger, range(2, 4))
    reopen(path, plan_of(), at_least=4).close()
