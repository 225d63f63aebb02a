"""Whole runs with a crash in the middle: right runs stay below their claim, and a run without noise does not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dpzv import config as configuration
from dpzv.attacks.audit import NETWORKED, WHOLE, attack, audit
from dpzv.attacks.crashing_runs import CANARY, crashing_run, made_up
from dpzv.attacks.lower_bound import plain_bound
from dpzv.attacks.networked_runs import networked_run
from dpzv.attacks.target import Target
from dpzv.attacks.whole_runs import whole_runs
from dpzv.cli.main import app
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.noise import ExactNoise, NoiseSource
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.device_view import read_views


class Silent(ExactNoise):
    """A fault: the noise of releases is left out."""

    def release(self, totals: Any, *, grid: float, divisor: int, sigma_dp: float, t: int, m: int) -> Any:
        return totals * grid / divisor


def target(method: str = "dpzv", noise: NoiseSource | None = None, epsilon: float = 0.5) -> Target:
    """Two linear devices; where it may, each starts with noise of its own."""
    private = {"start": "dp-whiten"} if method == "dpzv" else {"start": "random"}
    tree = {
        "train": {"rounds": 10, "method": method},
        "devices": {"embedding": 4, "model": "linear", **private},
        "head": {"rule": "frozen"},
        "privacy": {"epsilon": epsilon, "protects": "records" if method == "dpzv" else "labels"},
    }
    return Target(configuration.parse(tree), noise or ExactNoise(), "binary", 2, 2, 0.1)


def test_worlds_differ_in_one_label_and_in_nothing_else() -> None:
    low, high = (made_up(target(), world) for world in range(2))
    assert np.flatnonzero(low.y_train != high.y_train).tolist() == [CANARY]
    assert all(np.array_equal(a, b) for a, b in zip(low.x_train, high.x_train, strict=True))


def test_a_run_crashes_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """It is played to its end, and no round of it has two values."""
    plan = crashing_run(target(), 1, ExactNoise(), tmp_path / "run")
    ledger = read_ledger(tmp_path / "run" / "ledger.sqlite")
    assert (plan.T, plan.D, plan.epsilon_replace_one) == (4, 16, pytest.approx(0.5))
    assert plan.mu_start != (0.0, 0.0)
    assert ledger.plan == plan
    assert [len(view.t) for view in read_views(tmp_path / "run")] == [2, 2]
    received = tmp_path / "run" / "view" / "device-1" / "received.bin"
    assert received.stat().st_size == 3 * 24  # a round of device 1 was played again, and noted twice
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_server_dies_and_another_goes_on_with_the_devices_that_come_back(tmp_path: Path) -> None:
    """Every device has each of its releases, under the plan of a simulated run, over the same records."""
    run = tmp_path / "run"
    networked_run(target(), 1, ExactNoise(), run)
    plan = read_ledger(run / "ledger.sqlite").plan
    simulated = crashing_run(target(), 1, ExactNoise(), tmp_path / "simulated")
    assert (plan.T, plan.D, plan.mu_start, plan.sigma_dp) == (4, 16, simulated.mu_start, simulated.sigma_dp)
    views, others = read_views(run), read_views(tmp_path / "simulated")
    assert [view.t.tolist() for view in views] == [[1, 3], [2, 4]]
    for view, other in zip(views, others, strict=True):
        torch.testing.assert_close(view.x_train, other.x_train)
        assert set(view.start) == set(other.start)
    lines = [json.loads(line) for line in (run / "transcript.jsonl").read_text().splitlines()]
    by_round = {line["t"]: float.fromhex(line["Delta"]) for line in lines}
    assert by_round == {int(t): Delta for view in views for t, Delta in zip(view.t, view.Delta[:, 0], strict=True)}
    assert (run / "summary.json").exists()


def test_a_fault_of_the_network_alone_is_seen() -> None:
    """Runs between parties that talk: without noise they show more than is claimed, with it they do not."""
    found = whole_runs(target(noise=Silent()), 8, networked_run)
    assert found.low.max() < 0 < found.high.min()
    assert plain_bound(found, 0.1) > 0.75 > found.claim == pytest.approx(0.5)
    finding = attack(target(), NETWORKED, 2)
    assert (finding.strategy, finding.trials, finding.above) == ("networked-runs", 2, False)


def test_devices_of_an_audit_say_nothing_about_servers_that_die_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of the tests hear what else would be printed
    done = CliRunner().invoke(app, ["audit", "breast-cancer", "--trials", "1", "--networked", "1"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert "networked-runs" in done.stdout


@pytest.mark.parametrize("method", ["dpzv", pytest.param("vafl", marks=pytest.mark.soak)])
def test_runs_without_noise_are_seen(method: str) -> None:
    found = whole_runs(target(method, Silent()), 8)
    assert found.low.max() < 0 < found.high.min()
    # no errors in 8 runs of each world show an epsilon of ln(0.69/0.31) at 90 %
    assert plain_bound(found, 0.1) > 0.75 > found.claim == pytest.approx(0.5)


def test_a_resume_that_draws_fresh_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger gives the round that is played again another answer than before the crash."""
    stored = Ledger.stored

    def fresh(self: Ledger, t: int, frame_xxh3: bytes) -> Any:
        Delta = stored(self, t, frame_xxh3)
        return None if Delta is None else Delta + np.random.default_rng().normal(size=Delta.shape)

    monkeypatch.setattr(Ledger, "stored", fresh)
    with pytest.raises(PrivacyRefused, match="must get one answer for each batch, got two different ones"):
        attack(target(), WHOLE, 1)


def test_runs_with_their_noise_stay_below_the_claim() -> None:
    finding = attack(target(), WHOLE, 2)
    assert (finding.strategy, finding.trials, finding.above) == ("whole-runs", 2, False)


def test_rivals_are_audited_by_whole_runs_only() -> None:
    with pytest.raises(ConfigError, match="--whole"):
        audit(target("zoo-vfl"), 10, lambda _: None)
    found = audit(target("zoo-vfl"), 10, lambda _: None, whole=2)
    assert [one.strategy for one in found.findings] == ["whole-runs"]


@pytest.mark.soak
@pytest.mark.parametrize("method", ["dpzv", "vafl", "zoo-vfl", "vfl-czofo"])
def test_two_hundred_whole_runs(method: str) -> None:
    assert not attack(target(method, epsilon=1.0), WHOLE, 200).above
    assert attack(target(method, Silent(), epsilon=1.0), WHOLE, 200).above
