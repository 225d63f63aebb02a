"""Earlier runs as parents: overlap by names of records, full cost where it cannot be told, runs that were ended."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.privacy import small_runs
from tests.privacy.small_runs import ASKED, D, ids_of, plan_of, release

from dpzv.errors import PrivacyRefused
from dpzv.privacy.accountant import Composition, epsilon_of_parts, fold, gaussian_mu
from dpzv.privacy.events import Releases
from dpzv.privacy.gdp import mu_of
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.lineage import end, parents_of
from dpzv.privacy.plan import ParentRun, PrivacyPlan
from dpzv.privacy.record_names import UNNAMED, RecordNames
from dpzv.privacy.statement import read_ledger, spent
from dpzv.privacy.wording import verdict

run = partial(small_runs.run, rounds=48)
HEAD: dict[str, Any] = {"head_rule": "dp-sgd", "head_batch": 24, "head_steps": 4}


def names_of(first: int, key: str = "key") -> RecordNames:
    """Names of the D people from number `first` on."""
    hashes = np.zeros((D, 16), np.uint8)
    hashes[:, :4] = np.arange(first, first + D, dtype=">u4").view(np.uint8).reshape(D, 4)
    return RecordNames.of_hashes(key, hashes)


def reopened(folder: Path) -> Ledger:
    view = read_ledger(folder)
    return Ledger.open(
        folder / "ledger.sqlite",
        plan=view.plan,
        data_fingerprint=view.data_fingerprint,
        noise_source=view.noise_source,
        ids_of=ids_of,
    )


# --- which records are shared ---------------------------------------------------------------------


@pytest.mark.parametrize("shared", [D, D - 12, 1])
def test_a_run_that_shares_any_record_costs_in_full(tmp_path: Path, shared: int) -> None:
    """A claim is about the worst record: it may be the one that both trained on."""
    first = run(tmp_path / "a", plan_of(epsilon=0.5), names_of(0))
    (parent,) = parents_of([first], names_of(D - shared))
    assert parent.shared == shared
    plan = plan_of(parents=(parent,))
    assert plan.sigma_dp == plan_of(parents=parents_of([first], UNNAMED)).sigma_dp > plan_of().sigma_dp
    told = spent([run(tmp_path / "b", plan, names_of(D - shared))])
    assert told.epsilon == 1.0
    assert told.guarantee
    assert f"earlier run {parent.run_id[:8]} in full ({shared} of 120 records are shared)" in told.covered
    # records on which the first run did not train may have judged it
    assert any("choice of settings" in words for words in told.not_covered) == (shared < D)


@pytest.mark.parametrize("names", [UNNAMED, names_of(D, "another key")])
def test_where_it_cannot_be_told_a_run_costs_in_full(tmp_path: Path, names: RecordNames) -> None:
    first = run(tmp_path / "a", plan_of(epsilon=0.5), names_of(0))
    (parent,) = parents_of([first], names)
    assert parent.shared is None
    plan = plan_of(parents=(parent,))
    alone = mu_squared(plan_of())
    assert mu_squared(plan) == pytest.approx(alone, rel=1e-6)
    assert plan.mu**2 == pytest.approx(alone - mu_squared(plan_of(epsilon=0.5)), rel=1e-6)


def mu_squared(plan: PrivacyPlan) -> float:
    return gaussian_mu(plan.cost, "replace-one") ** 2


def test_only_a_run_over_other_records_for_sure_costs_nothing(tmp_path: Path) -> None:
    first = run(tmp_path / "a", plan_of(epsilon=3.0, protects="labels", starts=("pca", "pca")), names_of(0))
    loud = run(tmp_path / "b", plan_of(epsilon=math.inf), names_of(0), noise="seeded")
    parents = parents_of([first, loud], names_of(D))
    plan = plan_of(parents=parents)
    assert plan.sigma_dp == plan_of().sigma_dp
    assert verdict(plan, "exact")[0]
    told = spent([run(tmp_path / "c", plan, names_of(D))])
    assert sum("shares no record with this one" in words for words in told.covered) == 2
    # a later run that names only this one shares records with both, for all that is known
    with pytest.raises(PrivacyRefused, match="labels only"):
        plan_of(epsilon=9.0, parents=parents_of([tmp_path / "c"], names_of(2 * D)))
    later = plan_of(epsilon=9.0, protects="labels", parents=parents_of([tmp_path / "c"], names_of(2 * D)))
    assert sorted(parent.shared == 0 for parent in later.parents) == [False, False, True]
    assert not verdict(later, "exact")[0]
    # stated together, nothing is left out, whoever shares what
    assert spent([first, tmp_path / "c"]).epsilon > 3.0


def test_rows_are_names_within_the_same_records_only() -> None:
    whole, part = RecordNames.of_rows("f" * 64, np.arange(100)), RecordNames.of_rows("f" * 64, np.arange(90) + 10)
    assert (whole.shared_with(part), part.shared_with(part)) == (90, 90)
    assert part.shared_with(RecordNames.of_rows("e" * 64, np.arange(100))) is None
    assert UNNAMED.shared_with(UNNAMED) is None
    assert RecordNames.of_hashes("", np.zeros((3, 16), np.uint8)).shared_with(UNNAMED) is None
    rest = RecordNames.of_rows("f" * 64, np.array([0, 256, 65536]))  # names that differ in their last byte only
    assert rest.shared_with(RecordNames.of_rows("f" * 64, np.array([1, 257, 65537]))) == 0
    with pytest.raises(PrivacyRefused, match="damaged"):
        RecordNames(key="k", names=b"abc", count=2).shared_with(RecordNames(key="k", names=b"abcd", count=2))


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / "trials" / "runs" / name, plan_of(epsilon=0.3))
    parents = parents_of([tmp_path / "trials", tmp_path / "trials" / "runs" / "one"], UNNAMED)
    assert len(parents) == 2
    assert spent([tmp_path / "trials"]).epsilon == pytest.approx(
        epsilon_of_parts(plan_of(epsilon=1.0, parents=parents).before, 1e-5, "replace-one"), rel=1e-9
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(PrivacyRefused, match="must be the ledger of a run, but there is none"):
        parents_of([tmp_path / "empty"], UNNAMED)


# --- runs that stopped early ----------------------------------------------------------------------


def test_a_run_that_was_ended_costs_what_it_used_and_never_goes_on(tmp_path: Path) -> None:
    planned = plan_of(epsilon=0.9)
    first = run(tmp_path / "a", planned, rounds=12)
    in_full = plan_of(parents=parents_of([first], UNNAMED))
    assert end(first).ended
    (parent,) = parents_of([first], UNNAMED)
    plan = plan_of(parents=(parent,))
    # a quarter of the rounds: six batches of ten of 120 records by each of two devices, two of four participations
    assert mu_squared(plan) == pytest.approx(mu_squared(in_full), rel=1e-9)  # the budget is used to the end
    assert plan.mu**2 == pytest.approx(mu_squared(plan_of()) - mu_squared(planned) / 2, rel=1e-6)
    assert plan.sigma_dp < 0.8 * in_full.sigma_dp
    for attempt in (12, 47):
        with reopened(first) as ledger, pytest.raises(PrivacyRefused, match="ended for good"):
            release(ledger, range(attempt, attempt + 1))
    told = spent([run(tmp_path / "b", plan)])
    assert told.epsilon == 1.0
    assert any("as far as it came" in words for words in told.covered)


def test_what_was_used_is_never_less_than_any_record_paid(tmp_path: Path) -> None:
    for rounds in range(0, 48, 5):
        first = run(tmp_path / str(rounds), plan_of(), rounds=rounds)
        with reopened(first) as ledger:
            ledger.end()
            paid = ledger.unit_mu_squared
        (parent,) = parents_of([first], UNNAMED)
        assert parent.used is not None
        (used,) = parent.used
        assert isinstance(used, Releases)
        assert paid <= used.cap <= plan_of().cap * (1 + 1e-9)


def test_sampled_heads_cost_their_caps_and_a_head_makes_earlier_runs_cost_theirs(tmp_path: Path) -> None:
    """Only Gaussian pairs may be exchanged for one another on the way (Proof 3)."""
    planned = plan_of(epsilon=0.5, **HEAD)
    first = run(tmp_path / "a", planned, rounds=12, steps=1)
    running = parents_of([first], UNNAMED)
    end(first)
    ended = parents_of([first], UNNAMED)

    def before(parents: tuple[ParentRun, ...], **head: Any) -> Composition:
        return msgspec.structs.replace(ASKED, parents=parents, **head).before

    assert [one.steps for one in before(ended).sampled] == [4]
    assert gaussian_mu(before(ended), "zero-out") < 0.8 * gaussian_mu(before(running), "zero-out")
    assert before(ended, **HEAD) == before(running, **HEAD) == before(running)
    # a head over all records is a Gaussian pair
    whole = HEAD | {"head_batch": D}
    second = run(tmp_path / "b", plan_of(epsilon=0.5, **whole), rounds=12, steps=1)
    end(second)
    assert [one.steps for one in before(parents_of([second], UNNAMED)).sampled] == [1]
    assert [one.steps for one in before(parents_of([second], UNNAMED), **HEAD).sampled] == [4]


def test_the_noise_of_a_sampled_head_does_not_tell_how_far_any_earlier_run_came(tmp_path: Path) -> None:
    """The second run got what the first had left, so its caps follow the path; those of both together do not."""
    noise, costs, second_caps = [], [], []
    for rounds in (2, 24, 48):
        folder = tmp_path / f"{rounds}"
        first = run(folder / "a", plan_of(), rounds=rounds)
        end(first)
        second = run(folder / "b", plan_of(epsilon=2.0, parents=parents_of([first], UNNAMED)), rounds=12)
        second_caps.append(read_ledger(second).plan.cap)
        if rounds == 24:
            end(second)
        for named in ([second], [first, second]):
            plan = plan_of(epsilon=4.0, parents=parents_of(named, UNNAMED), **HEAD)
            noise.append(plan.z)
            costs.append(gaussian_mu(plan.before, "replace-one") ** 2)
    assert second_caps[0] > 1.1 * second_caps[2]
    assert noise == pytest.approx([noise[0]] * 6, rel=1e-4)
    assert costs == pytest.approx([gaussian_mu(plan_of(epsilon=2.0).cost, "replace-one") ** 2] * 6, rel=1e-6)


def test_a_family_without_a_head_pays_for_what_was_used_alone(tmp_path: Path) -> None:
    first = run(tmp_path / "a", plan_of(), rounds=2)
    end(first)
    second = run(tmp_path / "b", plan_of(epsilon=2.0, parents=parents_of([first], UNNAMED)), rounds=2)
    end(second)
    third = plan_of(epsilon=4.0, parents=parents_of([second], UNNAMED))
    used = [fold(parent.used or ()) for parent in third.parents]
    assert len(used) == 2
    squares = sum(gaussian_mu(one, "replace-one") ** 2 for one in used)
    assert gaussian_mu(third.before, "replace-one") ** 2 == pytest.approx(squares, rel=1e-9)
    # a third run with a sampled head, stated beside a run of its own, counts the family as it was fixed beforehand
    runs = [run(tmp_path / "c", plan_of(epsilon=4.0, parents=parents_of([second], UNNAMED), **HEAD))]
    runs.append(run(tmp_path / "d", plan_of(epsilon=0.5)))
    assert spent(runs).epsilon > 4.0


def test_two_runs_that_both_got_the_rest_count_it_twice(tmp_path: Path) -> None:
    first = run(tmp_path / "a", plan_of(), rounds=12)
    end(first)
    parents = parents_of([first], UNNAMED)
    runs = [run(tmp_path / name, plan_of(epsilon=2.0, parents=parents)) for name in "bc"]
    assert spent([runs[0], first]).epsilon == pytest.approx(2.0, rel=1e-8)
    both = 2 * mu_squared(plan_of(epsilon=2.0, parents=parents))
    told = spent(runs)
    assert told.epsilon == spent([*runs, first]).epsilon
    cost = plan_of(epsilon=2.0).cost
    assert both == pytest.approx(2 * gaussian_mu(cost, "replace-one") ** 2, rel=1e-9)
    doubled = Releases(cap=both / 4, distance=0.0)
    assert told.epsilon == pytest.approx(epsilon_of_parts(fold((doubled,)), 1e-5, "replace-one"), rel=1e-6)


def test_a_run_that_leaves_out_a_grandparent_does_not_hide_what_its_parent_paid(tmp_path: Path) -> None:
    """The third run shares no record with the first, but the second shares records with both."""
    first = run(tmp_path / "a", plan_of(epsilon=0.9), names_of(0))
    second = run(tmp_path / "b", plan_of(parents=parents_of([first], names_of(12))), names_of(12))
    plan = plan_of(epsilon=0.8, parents=parents_of([first, second], names_of(D)))
    assert sorted(parent.shared or 0 for parent in plan.parents) == [0, 12]
    third = run(tmp_path / "c", plan, names_of(D))
    assert (spent([second]).epsilon, spent([third]).epsilon) == (1.0, 0.8)
    for named in ([second, third], [first, second, third]):
        assert mu_of(spent(named).epsilon, 1e-5) ** 2 == pytest.approx(
            mu_squared(plan_of(epsilon=0.9)) + mu_squared(plan), rel=1e-6
        )


def test_a_run_keeps_its_parents_as_they_were_when_it_began(tmp_path: Path) -> None:
    first = run(tmp_path / "a", plan_of(epsilon=0.9), rounds=12)
    began = parents_of([first], UNNAMED)
    second = run(tmp_path / "b", plan_of(parents=began), rounds=4)
    end(first)
    assert parents_of([first], UNNAMED) != began
    assert parents_of([first], UNNAMED, begun=second) == began
    third = run(tmp_path / "c", plan_of(epsilon=0.1))
    assert len(parents_of([first, third], UNNAMED, begun=second)) == 2  # not what it began with: refused at opening


def test_a_run_in_use_cannot_be_ended_by_another_process(tmp_path: Path) -> None:
    first = run(tmp_path / "a", plan_of(), rounds=12)
    with reopened(first), pytest.raises(PrivacyRefused, match="in use"):
        end(first)
    assert not read_ledger(first).ended


def test_an_old_copy_cannot_be_ended(tmp_path: Path) -> None:
    """It knows of fewer releases than were made, so what it used would be too little."""
    first = run(tmp_path / "a", plan_of(), rounds=4)
    backup = (first / "ledger.sqlite").read_bytes()
    with reopened(first) as ledger:
        release(ledger, range(4, 24))
    (first / "ledger.sqlite").write_bytes(backup)
    with pytest.raises(PrivacyRefused, match="restored backup"):
        end(first)
    assert parents_of([first], UNNAMED)[0].used is None
