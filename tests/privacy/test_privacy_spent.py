"""What was spent, read from ledgers alone: one, several, their parents, alive, killed, in a folder one cannot write."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.plans import cost_of
from tests.privacy import ledger_child
from tests.privacy.small_runs import D, ids_of, plan_of, release, run

from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.accountant import epsilon_of_parts
from dpzv.privacy.events import SampledGaussian
from dpzv.privacy.gdp import epsilon_of, mu_of
from dpzv.privacy.head_steps import HeadSteps
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.lineage import parents_of
from dpzv.privacy.record_names import UNNAMED
from dpzv.privacy.statement import read_ledger, spent
from dpzv.privacy.wording import verdict
from dpzv.terms import NoiseSourceName

HEAD: dict[str, Any] = {"head_rule": "dp-sgd", "head_batch": 24, "head_steps": 40, "head_share": 0.5}


def test_one_run(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", plan_of())
    for path in (folder, folder / "ledger.sqlite"):
        found = spent([path])
        assert found.guarantee
        assert found.epsilon == found.epsilon_replace_one == 1.0
        assert (found.releases, found.head_steps) == (24, 0)
        # half of the rounds: two devices went once round each, two of four participations
        assert found.epsilon_spent == pytest.approx(epsilon_of(mu_of(1.0, 1e-5) / math.sqrt(2), 1e-5), rel=1e-6)
    view = read_ledger(folder)
    assert view.turns == {1: 12, 2: 12}
    assert view.plan == plan_of()


def test_several_runs_add_up_in_squares(tmp_path: Path) -> None:
    plans = [
        plan_of(),
        plan_of(epsilon=2.0),
        plan_of(neighbours="zero-out", starts=("dp-pca", "random"), start_share=0.3),
    ]
    found = spent([run(tmp_path / str(i), plan) for i, plan in enumerate(plans)])
    releases = sum(plan.cap for plan in plans)
    start = plans[2].mu_start[0] ** 2
    assert found.epsilon_zero_out == pytest.approx(epsilon_of(math.sqrt(releases + start), 1e-5), rel=1e-8)
    assert found.epsilon_replace_one == pytest.approx(epsilon_of(math.sqrt(4 * releases + 2 * start), 1e-5), rel=1e-8)
    assert found.neighbours == "replace-one"
    assert found.epsilon == found.epsilon_replace_one > 3
    assert found.guarantee
    assert found.releases == 72
    assert len(found.runs) == 3
    assert found.text().count("Released") == 3
    assert "3 runs" in found.guarantee_why
    assert found.epsilon_spent < found.epsilon


def test_sampled_heads_are_composed_in_one_account(tmp_path: Path) -> None:
    plans = [plan_of(**HEAD), plan_of(**HEAD, epsilon=0.5)]
    paths = [run(tmp_path / str(i), plan, steps=10) for i, plan in enumerate(plans)]
    found = spent(paths)
    heads = tuple(SampledGaussian(q=0.2, z=plan.z, steps=40) for plan in plans)
    whole = cost_of(releases=plans[0].cap + plans[1].cap, heads=tuple(sorted(heads, key=lambda head: head.z)))
    assert found.epsilon == pytest.approx(epsilon_of_parts(whole, 1e-5, "replace-one"), rel=1e-6)
    assert 1.0 < found.epsilon < 1.5  # less than the sum of both
    assert found.head_steps == 20


@pytest.mark.parametrize(
    ("changes", "noise", "why"),
    [
        ({}, "seeded", "simulated noise"),
        ({"accounting": "paper", "head_rule": "sgd"}, "exact", "published rule"),
        ({"epsilon": math.inf}, "exact", "no privacy"),
    ],
)
def test_one_run_without_a_guarantee_takes_it_from_all(
    tmp_path: Path, changes: dict[str, Any], noise: NoiseSourceName, why: str
) -> None:
    paths = [run(tmp_path / "a", plan_of()), run(tmp_path / "b", plan_of(**changes), noise=noise)]
    found = spent(paths)
    assert not found.guarantee
    assert why in found.guarantee_why
    assert not any(a.may_leave for a in found.artefacts)
    assert math.isinf(found.epsilon) == (changes.get("epsilon") == math.inf)


def test_the_weaker_protection_is_what_is_stated(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a", plan_of()), run(tmp_path / "b", plan_of(protects="labels", starts=("pca", "pca")))]
    assert spent(paths).protects == "labels"


def test_copies_and_other_deltas_are_refused(tmp_path: Path) -> None:
    a = run(tmp_path / "a", plan_of())
    c = run(tmp_path / "c", plan_of(delta_dp=1e-6))
    copy = tmp_path / "copy"
    shutil.copytree(a, copy)
    with pytest.raises(PrivacyRefused, match="given twice"):
        spent([a, copy])
    with pytest.raises(PrivacyRefused, match="given twice"):
        parents_of([a, copy], UNNAMED)
    with pytest.raises(PrivacyRefused, match="one delta_dp only, got 1e-05, 1e-06"):
        spent([a, c])
    with pytest.raises(PrivacyRefused, match="must be the ledger of a run, but there is none"):
        spent([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="at least one"):
        spent([])


def test_a_child_counts_its_parents_once(tmp_path: Path) -> None:
    """Grandparent, parent and child: the child's figure is the whole family's, however many of them are named."""
    first = run(tmp_path / "first", plan_of(epsilon=0.5))
    second = run(tmp_path / "second", plan_of(epsilon=0.8, parents=parents_of([first], UNNAMED)))
    third = run(tmp_path / "third", plan_of(epsilon=1.0, parents=parents_of([second], UNNAMED)))
    assert len(read_ledger(third).plan.parents) == 2
    assert spent([first]).epsilon == 0.5
    alone = spent([third])
    assert alone.epsilon == 1.0
    for family in ([third, first], [third, second], [first, second, third]):
        assert spent(family).epsilon == pytest.approx(1.0, rel=1e-8)
    assert sum(word.startswith("earlier run") for word in alone.covered) == 2


def test_beside_a_run_without_an_account_nothing_is_guaranteed(tmp_path: Path) -> None:
    for name, changes in {"a": {"epsilon": math.inf}, "b": {"accounting": "paper"}}.items():
        folder = run(tmp_path / name, plan_of(**changes))
        plan = plan_of(parents=parents_of([folder], UNNAMED))
        assert plan.sigma_dp == plan_of().sigma_dp  # no noise would be enough
        guarantee, why = verdict(plan, "exact")
        assert not guarantee
        assert "no account" in why


# --- whoever else has the ledger open -------------------------------------------------------------


def test_a_live_ledger_is_read_without_disturbing_it(tmp_path: Path) -> None:
    plan = plan_of(**(HEAD | {"head_batch": D}))
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, plan=plan, data_fingerprint="d", noise_source="exact", ids_of=ids_of) as ledger:
        for done in range(0, 40, 10):
            release(ledger, range(done, done + 10))
            ledger.wait(done + 9)
            ledger.charge(HeadSteps(q=plan.q, z=plan.z, steps=3))
            view = read_ledger(path)
            assert (view.releases, view.head_steps) == (done + 10, 3 * (done // 10 + 1))
        release(ledger, range(40, 41))
        assert read_ledger(path).releases == 40  # not durable yet, so not released
    assert spent([path]).releases == 41
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_the_ledger_of_a_killed_run_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    process = subprocess.Popen(**ledger_child.child("acknowledge", path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as lines:
        read = [lines.readline() for _ in range(20)]
        assert read_ledger(path).releases >= 20  # while it runs
        process.send_signal(signal.SIGKILL)
        read += lines.readlines()
    process.wait()
    assert len(read) <= read_ledger(path).releases <= len(read) + 1
    with ledger_child.reopen(path, durable=True, at_least=len(read)) as ledger:  # the lock died with its owner
        assert ledger.releases >= len(read)


def test_a_ledger_in_a_folder_one_cannot_write(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", plan_of())
    folder.chmod(0o555)
    try:
        assert read_ledger(folder).releases == 24
    finally:
        folder.chmod(0o755)
    assert [p.name for p in folder.iterdir()] == ["ledger.sqlite"]


def test_a_damaged_ledger_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("this is not a ledger " * 500)
    with pytest.raises(PrivacyRefused, match="cannot be read"):
        spent([path])
