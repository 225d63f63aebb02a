"""The server's run, whoever drives it: it goes on under the noise it began with, or not at all."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.errors import ConfigError, DataError, PeerError, PrivacyRefused
from dpzv.privacy import head_steps
from dpzv.privacy.ledger_file import insert_releases
from dpzv.protocol.messages import Fill
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import load_data, resume, start
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import plan_of
from dpzv.runtime.simulate import Simulation


def config_of(*assignments: str) -> Config:
    """A short run on digits with a private head."""
    tree = recipes.tree("digits")
    short = ("train.rounds=12", "head.steps=6", "head.refit_steps=4")
    for assignment in ("noise.source=seeded", "runtime.threads=1", *short, *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


@pytest.mark.parametrize(("began", "now"), [(1.01, 1.0), (1.0, 1.01)], ids=["less", "more"])
def test_a_run_does_not_go_on_under_an_accountant_that_plans_other_noise_for_its_head(
    began: float, now: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it plans less noise than the run began with, or more."""
    known = head_steps.MECHANISM

    def planning(factor: float) -> None:
        other = replace(known, calibrated=lambda *given, **named: factor * known.calibrated(*given, **named))
        monkeypatch.setattr(head_steps, "MECHANISM", other)

    planning(began)
    assert start(config_of(), tmp_path, lambda snapshot: snapshot.t < 5, float("inf")) is None
    planning(now)
    with pytest.raises(PrivacyRefused, match="the run began with head noise z="):
        resume(tmp_path, lambda snapshot: True, float("inf"))
    planning(began)
    summary = resume(tmp_path, lambda snapshot: True, float("inf"))
    assert summary is not None
    assert summary["rounds"] == 12


def test_rows_are_filled_in_order_once_and_before_the_rounds(tmp_path: Path) -> None:
    config = config_of()
    data = load_data(config)
    simulation = Simulation(config, data, partial(make_networks, config, data))
    with simulation.opened(RunFolder(tmp_path)):
        run, (first, *_) = simulation.server_run, list(simulation.devices[0].fill())
        assert run.needs_fill(1)
        assert run.filled_to(1, again=True) == 0
        with pytest.raises(PeerError, match="may fill row 0 next"):
            run.fill(Fill(1, 1, first.h), 10)
        with pytest.raises(PeerError, match="must fill"):
            run.fill_ends(1)
        half = len(first.h) // 2
        run.fill(Fill(1, 0, first.h[:half]), 10)
        assert run.filled_to(1, again=True) == half
        assert run.filled_to(1, again=False) == 0  # it comes with other weights: from the beginning
        run.fill(Fill(1, 0, first.h), 30)
        run.fill_ends(1)
        assert not run.needs_fill(1)
        assert not run.ready  # the others have filled nothing
        assert run.journal.meter.bytes_up == run.journal.meter.bytes_initial == 40
        run.begun = True
        with pytest.raises(PeerError, match="before the rounds begin"):
            run.fill(Fill(1, 0, first.h), 10)


@pytest.mark.parametrize(("apart", "saved"), [(True, [5, 10, 15, 20, 25, 30, 35, 40]), (False, [])])
def test_old_rows_in_the_table_of_a_server_that_comes_back_are_few(
    apart: bool, saved: list[int], tmp_path: Path
) -> None:
    """Where devices do not go back with it, it lacks a twentieth of all rounds at most, however fast these are."""
    config = config_of("train.rounds=100", "head.rule=frozen", "runtime.checkpoint_seconds=1e6")
    data = load_data(config)
    simulation, due = Simulation(config, data, partial(make_networks, config, data)), []
    with simulation.opened(RunFolder(tmp_path)):
        simulation.begin(lambda snapshot: True)
        run = simulation.server_run
        if apart:
            run.restore()
        for t in range(1, 41):
            simulation.round()
            if run.checkpoint_due:
                due.append(t)
                run.save()
    assert due == saved


def test_more_directions_than_the_account_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.q must be at most 65536, got 65537"):
        plan_of(config_of("train.method=vfl-czofo", "privacy.protects=labels", "train.q=65537"), 1000, 4)


def test_a_device_that_comes_back_costs_what_it_has_missed(tmp_path: Path) -> None:
    """Of 60,000 releases a device that has all of them, or all but three, is not told by reading all of them again."""
    config = config_of("train.rounds=60000", "head.rule=frozen")
    data = load_data(config)
    simulation = Simulation(config, data, partial(make_networks, config, data))
    with simulation.opened(RunFolder(tmp_path)):
        run, n = simulation.server_run, 60_000
        M = run.plan.M
        rows = [(t, t % M + 1, (t - 1) // M, 1, 1.0, np.float64(t).tobytes(), b"") for t in range(1, n + 1)]
        insert_releases(run.ledger._connection, rows)
        run.ledger.last_t = n
        mine = [(t, position, float(t)) for t, m, position, *_ in rows if m == 2]
        assert [position for _, position, _ in mine] == list(range(len(mine)))
        found = [(r.t, r.position, float(r.Delta[0])) for r in run.missed(2, 0)]
        assert found == mine
        for wrong in (-1, len(mine) + 1, 2**62):
            with pytest.raises(PeerError, match=f"was sent {len(mine)} releases"):
                run.missed(2, wrong)
        began = time.process_time()
        for _ in range(50):
            assert list(run.missed(2, len(mine))) == []
            assert [r.position for r in run.missed(2, len(mine) - 3)] == list(range(len(mine) - 3, len(mine)))
        assert time.process_time() - began < 0.5  # it was 60 ms for each


def test_devices_of_a_run_with_some_of_them_have_their_own_names(tmp_path: Path) -> None:
    names = 'network.devices=["north", "east", "south", "west"]'
    config = config_of(names, "data.devices=[4, 2]", "head.rule=frozen")
    summary = start(config, tmp_path, lambda snapshot: True, float("inf"))
    assert summary is not None
    assert [one["device"] for one in summary["participation"]] == ["west", "east"]


def test_a_damaged_summary_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary\.json is not the summary of a finished run"):
        RunFolder(tmp_path).read_summary()
