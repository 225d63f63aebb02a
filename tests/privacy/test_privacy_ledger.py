"""The ledger: caps, repeats, rebuilding, refusals."""

from __future__ import annotations

import hashlib
import math
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.plans import asked

from dpzv.errors import PrivacyRefused
from dpzv.privacy.events import PlannedRelease, unit_mu
from dpzv.privacy.head_steps import HeadSteps
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.ledger_file import plain_errors
from dpzv.privacy.plan import PrivacyPlan, epsilon_spent, request_of, start_event
from dpzv.privacy.planning import make_plan
from dpzv.privacy.statement import read_ledger
from dpzv.rng import numpy_generator
from dpzv.terms import NoiseSourceName

D, B, M, T = 23, 5, 2, 40


def plan_of(**changes: Any) -> PrivacyPlan:
    request = asked(
        B=B,
        D=D,
        M=M,
        T=T,
        participations=10,
        starts=("dp-pca", "random"),
        start_share=0.2,
    )
    return make_plan(msgspec.structs.replace(request, **changes))


ORDER = [numpy_generator("order", m).permutation(D) for m in range(M)]


def ids_of(m: int, position: int) -> NDArray[np.int64]:
    return ORDER[m][np.arange(position * B, (position + 1) * B) % D]


def event_of(plan: PrivacyPlan, t: int) -> PlannedRelease:
    return PlannedRelease(t=t, m=t % M, position=t // M, B=B, C=plan.C, sigma_dp=plan.sigma_dp)


def frame(t: int) -> bytes:
    return hashlib.sha256(str(t).encode()).digest()


def create(path: Path, plan: PrivacyPlan, *, durable: bool = False) -> Ledger:
    source: NoiseSourceName = "exact" if durable else "seeded"
    return Ledger.create(path, plan=plan, data_fingerprint="data-1", noise_source=source, ids_of=ids_of)


def reopen(path: Path, plan: PrivacyPlan, **changes: Any) -> Ledger:
    settings: dict[str, Any] = {"data_fingerprint": "data-1", "noise_source": "seeded"}
    return Ledger.open(path, plan=plan, ids_of=ids_of, **(settings | changes))


def write_one(ledger: Ledger, event: PlannedRelease, Delta: float) -> None:
    ledger.submit(event, np.array([Delta]), frame(event.t))
    ledger.wait(event.t)


def write(ledger: Ledger, rounds: range) -> None:
    for t in rounds:
        write_one(ledger, event_of(ledger.plan, t), t / 7)


def all_masks(ledger: Ledger) -> list[bool]:
    """Who is past its cap, record by record: the whole state of the counters that matters."""
    event = event_of(ledger.plan, 0)
    return [bool(x) for p in range(D) for x in past_cap(ledger, msgspec.structs.replace(event, position=p))]


def past_cap(ledger: Ledger, event: PlannedRelease) -> NDArray[np.bool_]:
    """Which records of the event's batch may not contribute."""
    able = ledger.contributes(event)
    return np.zeros(event.B, bool) if able is None else ~able


# --- caps -----------------------------------------------------------------------------------------


def test_a_record_past_its_cap_is_named_and_not_charged(tmp_path: Path) -> None:
    plan = plan_of(participations=2)
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        for t in range(T):
            counts = np.zeros(D, dtype=int)
            for earlier in range(t):
                counts[ids_of(earlier % M, earlier // M)] += 1
            expected = counts[ids_of(t % M, t // M)] >= 2
            np.testing.assert_array_equal(past_cap(ledger, event_of(plan, t)), expected)
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
        ({"C": 2.0}, "clip 2"),
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
        for call in (ledger.admit, lambda event: ledger.submit(event, np.zeros(1), frame(3))):
            with pytest.raises(PrivacyRefused, match=word):
                call(msgspec.structs.replace(event_of(plan, 3), **changes))
        assert (ledger.releases, ledger.last_t, ledger.unit_mu_squared) == (3, 2, spent)


@pytest.mark.parametrize(("epsilon", "admitted"), [(1.0, False), (math.inf, True)])
def test_a_batch_below_the_least_is_refused_though_the_schedule_has_it(
    tmp_path: Path, epsilon: float, admitted: bool
) -> None:
    """The plan's own B is large enough; a schedule with a shorter batch would make Delta a reading of few records."""
    plan = plan_of(min_batch=B, epsilon=epsilon)

    def few(m: int, position: int) -> NDArray[np.int64]:
        return ids_of(m, position)[: B - 1]

    with Ledger.create(
        tmp_path / "ledger.sqlite",
        plan=plan,
        data_fingerprint="data-1",
        noise_source="seeded",
        ids_of=few,
    ) as ledger:
        event = plan.release(t=0, m=0, position=0, B=B - 1)
        if admitted:
            write_one(ledger, event, 0.0)
        else:
            for call in (ledger.admit, lambda event: ledger.submit(event, np.zeros(1), frame(0))):
                with pytest.raises(PrivacyRefused, match=rf"batch of {B - 1} \(at least {B}\)"):
                    call(event)
        assert ledger.releases == admitted


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
            write_one(ledger, event_of(plan, t), value)
        live = [ledger.stored(t, frame(t)) for t in range(len(values))]
    with reopen(tmp_path / "ledger.sqlite", plan, noise_source="exact" if durable else "seeded") as ledger:
        later = [ledger.stored(t, frame(t)) for t in range(len(values))]
        assert ledger.stored(len(values), frame(0)) is None
        with pytest.raises(PrivacyRefused, match="another frame"):
            ledger.stored(3, frame(4))
    for found in (live, later):
        assert [float(x[0]).hex() for x in found if x is not None] == [x.hex() for x in values]


def test_starts_are_stored_once(tmp_path: Path) -> None:
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        for _ in range(2):
            ledger.charge(start_event(plan, 0))
        for other in ({"noise_multiplier": 1.0}, {"m": 1}):
            with pytest.raises(PrivacyRefused, match="as planned"):
                ledger.charge(msgspec.structs.replace(start_event(plan, 0), **other))
    rows = rows_of(tmp_path / "ledger.sqlite", "SELECT event FROM events")
    assert rows == [(msgspec.msgpack.encode(start_event(plan, 0)),)]
    with reopen(tmp_path / "ledger.sqlite", plan) as ledger:
        assert ledger.charged == [start_event(plan, 0)]
        ledger.charge(start_event(plan, 0))
        assert len(ledger.charged) == 1


# --- the private head -----------------------------------------------------------------------------


def head_plan(**changes: Any) -> PrivacyPlan:
    """A head over all records has a closed form, so the plan is made at once."""
    head: dict[str, Any] = {"head_rule": "dp-sgd", "head_batch": D, "head_steps": 10, "head_share": 0.4}
    return plan_of(**(head | changes))


def test_head_steps_are_charged_before_they_run_and_stay_charged(tmp_path: Path) -> None:
    path, plan = tmp_path / "ledger.sqlite", head_plan()

    def block(steps: int, **other: float) -> HeadSteps:
        return HeadSteps(**({"q": plan.q, "z": plan.z, "steps": steps} | other))

    with create(path, plan) as ledger:
        assert ledger.head_steps == 0
        ledger.charge(block(4))
        seen = rows_of(path, "SELECT event FROM events")
        assert seen == [(msgspec.msgpack.encode(block(4)),)]  # by others at once
        ledger.charge(block(2))
        for steps in (5, 0, -1):
            with pytest.raises(PrivacyRefused, match="leaves 4 of 10"):
                ledger.charge(block(steps))
        for other in ({"z": plan.z / 2}, {"q": plan.q / 2}):
            with pytest.raises(PrivacyRefused, match="leaves 0 of 0"):
                ledger.charge(block(1, **other))
        assert ledger.head_steps == 6
    with reopen(path, plan) as ledger:
        assert ledger.head_steps == 6
        ledger.charge(block(4))
        with pytest.raises(PrivacyRefused, match="leaves 0"):
            ledger.charge(block(1))


def test_other_head_rules_have_no_steps_to_charge(tmp_path: Path) -> None:
    with create(tmp_path / "ledger.sqlite", plan_of()) as ledger, pytest.raises(PrivacyRefused, match="0 of 0"):
        ledger.charge(HeadSteps(q=1.0, z=1.0, steps=1))


# --- waiting together -----------------------------------------------------------------------------


def commits_of(ledger: Ledger) -> list[str]:
    """Every COMMIT the ledger makes from now on, and every insertion that is a transaction of its own."""
    found: list[str] = []

    def note(text: str) -> None:
        if text == "COMMIT" or (text.startswith("INSERT") and not ledger._connection.in_transaction):
            found.append(text)

    ledger._connection.set_trace_callback(note)
    return found


def test_releases_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    path, plan = tmp_path / "ledger.sqlite", plan_of()
    with create(path, plan, durable=True) as ledger:
        commits = commits_of(ledger)
        for t in range(7):
            ledger.submit(event_of(plan, t), np.array([t / 7]), frame(t))
        assert rows_of(path, "SELECT COUNT(*) FROM releases") == [(0,)]
        ledger.wait(3)
        assert rows_of(path, "SELECT COUNT(*) FROM releases") == [(7,)]
        for t in range(7):
            ledger.wait(t)
        assert len(commits) == 1
        write(ledger, range(7, 9))
        assert len(commits) == 3


def test_a_submitted_release_counts_before_it_is_stored(tmp_path: Path) -> None:
    plan = plan_of(participations=1)
    with create(tmp_path / "ledger.sqlite", plan, durable=True) as ledger:
        ledger.submit(event_of(plan, 0), np.array([0.5]), frame(0))
        assert past_cap(ledger, event_of(plan, 0)).all()
        assert (ledger.releases, ledger.last_t) == (1, 0)
        with pytest.raises(PrivacyRefused, match="once"):
            ledger.submit(event_of(plan, 0), np.array([0.5]), frame(0))


def test_a_repeat_of_a_waiting_release_is_stored_before_it_is_answered(tmp_path: Path) -> None:
    path, plan = tmp_path / "ledger.sqlite", plan_of()
    with create(path, plan, durable=True) as ledger:
        ledger.submit(event_of(plan, 0), np.array([0.5]), frame(0))
        assert ledger.stored(0, frame(0)) == 0.5
        assert rows_of(path, "SELECT t FROM releases") == [(0,)]
        ledger.submit(event_of(plan, 1), np.array([0.5]), frame(1))
        with pytest.raises(PrivacyRefused, match="another frame"):
            ledger.stored(1, frame(2))


def test_threads_get_their_releases_durable_in_order(tmp_path: Path) -> None:
    """Seven devices: when `wait` returns, another connection sees the row and all before it; commits are shared."""
    path, plan, turn, seen = tmp_path / "ledger.sqlite", plan_of(T=210), threading.Lock(), []
    with create(path, plan, durable=True) as ledger:
        commits = commits_of(ledger)
        rounds = iter(range(210))

        def device() -> None:
            for _ in range(30):
                with turn:
                    t = next(rounds)
                    ledger.submit(event_of(plan, t), np.array([t / 7]), frame(t))
                ledger.wait(t)
                seen.append((t, rows_of(path, f"SELECT COUNT(*) FROM releases WHERE t <= {t}")[0][0]))

        threads = [threading.Thread(target=device) for _ in range(7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.releases == 210
    assert sorted(t for t, _ in seen) == list(range(210))
    assert all(count == t + 1 for t, count in seen)
    assert len(commits) < 210
    assert rows_of(path, "SELECT t, Delta FROM releases ORDER BY t") == [
        (t, np.array([t / 7]).tobytes()) for t in range(210)
    ]


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
        write(ledger, range(written, T))
    with reopen(tmp_path / "ledger.sqlite", plan, at_least=T) as ledger:
        assert ledger.releases == T
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.sqlite"]


@settings(max_examples=25, deadline=None)
@given(
    draws=st.lists(st.tuples(st.sampled_from([3, 5]), st.integers(0, 40)), max_size=40),
    participations=st.integers(1, 12),
)
def test_rebuilding_in_chunks_is_replaying_in_order(draws: list[tuple[int, int]], participations: int) -> None:
    """Batches of different sizes cost differently, so the order in which caps are reached matters."""
    batches = [numpy_generator("draw", i, B, k).permutation(D)[:B] for i, (B, k) in enumerate(draws)]
    plan = plan_of(participations=participations, T=1000, starts=("random", "random"))

    def ids(m: int, position: int) -> NDArray[np.int64]:
        return batches[position]

    def cost(i: int) -> PlannedRelease:
        return PlannedRelease(t=i, m=0, position=i, B=draws[i][0], C=plan.C, sigma_dp=plan.sigma_dp)

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "ledger.sqlite"
        settings_: dict[str, Any] = {"data_fingerprint": "d", "noise_source": "seeded"}
        with Ledger.create(path, plan=plan, ids_of=ids, **settings_) as ledger:
            for i in range(len(draws)):
                try:
                    write_one(ledger, cost(i), 0.0)
                except PrivacyRefused:  # a small batch that alone passes a small cap
                    continue
            used = ledger._counters._used.copy()
        with Ledger.open(path, plan=request_of(plan), ids_of=ids, **settings_) as ledger:
            np.testing.assert_array_equal(ledger._counters._used, used)


def test_rows_say_what_was_released(tmp_path: Path) -> None:
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        write(ledger, range(3))
    found = rows_of(tmp_path / "ledger.sqlite", "SELECT * FROM releases WHERE t = 2")
    assert found == [(2, 0, 1, B, plan.sigma_dp, np.array([2 / 7]).tobytes(), frame(2))]


# --- refusals at the door -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"plan": plan_of(epsilon=2.0)}, "epsilon = 1.0, got 2.0"),
        ({"plan": plan_of(head_rule="joint-zo")}, "head_rule"),
        ({"data_fingerprint": "data-2"}, "data = data-1, got data-2"),
        ({"noise_source": "exact"}, "noise.source"),
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
        assert ledger.releases == 3


def test_secret_noise_has_a_durable_ledger(tmp_path: Path) -> None:
    for source, durable in (("exact", True), ("seeded", False)):
        path = tmp_path / source
        with Ledger.create(
            path, plan=plan_of(), data_fingerprint="data-1", noise_source=source, ids_of=ids_of
        ) as ledger:
            write(ledger, range(1))
            assert len(rows_of(path, "SELECT t FROM releases")) == durable


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


@pytest.mark.parametrize("damage", ["empty", "text", "pages", "other", "plan", "old copy"])
def test_a_damaged_ledger_is_refused(tmp_path: Path, damage: str) -> None:
    """By its run, and by all who only read it: a statement made from it would say too little."""
    path = tmp_path / "ledger.sqlite"
    with create(path, plan_of()) as ledger:
        write(ledger, range(T))
        if damage == "old copy":
            ledger.disown()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("this is not a ledger " * 500)
    elif damage == "pages":
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    elif damage != "old copy":
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
    with pytest.raises(PrivacyRefused, match="cannot be read"):
        read_ledger(path)


def test_a_ledger_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with create(path, plan_of()) as ledger:
        write(ledger, range(2))
        for refused in (reopen, create):
            with pytest.raises(PrivacyRefused, match="in use"):
                refused(path, plan_of())
        write(ledger, range(2, 4))
    reopen(path, plan_of(), at_least=4).close()
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_copied_ledger_is_refused_and_a_renamed_one_is_not(tmp_path: Path) -> None:
    first, copied, renamed = tmp_path / "first", tmp_path / "copied", tmp_path / "renamed"
    first.mkdir()
    with create(first / "ledger.sqlite", plan_of()) as ledger:
        write(ledger, range(3))
    shutil.copytree(first, copied)
    with pytest.raises(PrivacyRefused, match=rf"is a copy of {first}"):
        reopen(copied / "ledger.sqlite", plan_of())
    with pytest.raises(PrivacyRefused, match="is a copy"):  # asking again does not make it the original
        reopen(copied / "ledger.sqlite", plan_of())
    first.rename(renamed)
    with reopen(renamed / "ledger.sqlite", plan_of(), at_least=3) as ledger:
        assert ledger.releases == 3
    shutil.copytree(renamed, first)  # back to the old place, but another file: the ledger has moved on
    with pytest.raises(PrivacyRefused, match=rf"is a copy of {renamed}"):
        reopen(first / "ledger.sqlite", plan_of())


def test_the_request_alone_reopens_a_ledger(tmp_path: Path) -> None:
    """A resumed run need not calibrate again; settings that nothing looks at may differ."""
    path, plan = tmp_path / "ledger.sqlite", head_plan()
    create(path, plan).close()
    asked = msgspec.structs.replace(request_of(plan))
    with reopen(path, asked) as ledger:  # type: ignore[arg-type]
        assert ledger.plan == plan
    frozen = plan_of(starts=("random", "random"))
    create(tmp_path / "other.sqlite", frozen).close()
    unlooked = msgspec.structs.replace(request_of(frozen), head_share=0.9, head_batch=3, start_share=0.7)
    reopen(tmp_path / "other.sqlite", unlooked).close()  # type: ignore[arg-type]


# --- many rounds in one piece ---------------------------------------------------------------------


def test_a_ledger_that_another_program_locks_is_said_to_be_in_use(tmp_path: Path) -> None:
    """Whoever reads that waits; a ledger that cannot be read would end the run for good."""
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(sqlite3.connect(path, 0)) as own:
        other.execute("CREATE TABLE meta (key)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(PrivacyRefused, match="in use by another process"), plain_errors(path):
            own.execute("SELECT * FROM meta")


def block(rounds: Iterable[int]) -> list[tuple[int, int, int]]:
    return [(t, t % M, t // M) for t in rounds]


def test_rounds_in_one_piece_charge_what_they_charge_one_by_one(tmp_path: Path) -> None:
    plan = plan_of()
    with create(tmp_path / "a.sqlite", plan) as one_by_one, create(tmp_path / "b.sqlite", plan) as together:
        write(one_by_one, range(T))
        together.submit_all(event_of(plan, 0), block(range(7)))
        together.submit_all(event_of(plan, 7), block(range(7, T)))
        assert all_masks(together) == all_masks(one_by_one)
        assert together.unit_mu_squared == one_by_one.unit_mu_squared
        assert (together.releases, together.last_t) == (one_by_one.releases, one_by_one.last_t) == (T, T - 1)


@pytest.mark.parametrize(
    "rounds",
    [[*range(30, T + 1)], [30, 30], [30, 32], [29, 30]],
    ids=["more than are left", "one twice", "a gap", "one again"],
)
def test_rounds_in_one_piece_are_those_that_the_plan_still_has(tmp_path: Path, rounds: list[int]) -> None:
    plan = plan_of()
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        ledger.submit_all(event_of(plan, 0), block(range(30)))
        before = ledger.unit_mu_squared
        with pytest.raises(PrivacyRefused):
            ledger.submit_all(event_of(plan, rounds[0]), block(rounds))
        assert (ledger.releases, ledger.unit_mu_squared) == (30, before)


def test_the_log_beside_the_ledger_stays_short(tmp_path: Path) -> None:
    """A log that grows to SQLite's usual four megabytes makes every commit take twice as long."""
    file = tmp_path / "ledger.sqlite"
    with create(file, plan_of(T=600, participations=200), durable=True) as ledger:
        write(ledger, range(600))
        assert (tmp_path / "ledger.sqlite-wal").stat().st_size < 2**20
