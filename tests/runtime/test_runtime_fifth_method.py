"""A fifth method from a stranger: its own file and one line in the table; several numbers a message pass unchanged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from dpzv import config as configuration
from dpzv import methods, recipes
from dpzv.attacks.audit import audit
from dpzv.attacks.label_attacks import COMPLETIONS
from dpzv.attacks.target import target_of
from dpzv.cli.main import app
from dpzv.declarations import METHODS, MethodFacts
from dpzv.errors import ConfigError
from dpzv.runtime.fused_kinds import why_not
from dpzv.runtime.run import start
from dpzv.runtime.run_plan import noise_of
from tests.fifth_method import ENTRY, FILE


@pytest.fixture
def three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The method's file, and its line in the table."""
    (tmp_path / "three_ways.py").write_text(FILE)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    (facts,) = eval(f"({ENTRY})", {"MethodFacts": MethodFacts})
    monkeypatch.setitem(METHODS, facts.name, facts)
    return str(facts.name)


def config_of(*assignments: str) -> configuration.Config:
    tree = recipes.tree("digits")
    for assignment in (
        "runtime.threads=1",
        "head.rule=frozen",
        "head.refit_steps=4",
        "train.momentum=0",
        *assignments,
    ):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_a_fifth_method_trains_under_a_guarantee(three_ways: str, codec: str, tmp_path: Path) -> None:
    config = config_of(f"train.method={three_ways}", "train.rounds=6", f"codec.name={codec}")
    summary = start(config, tmp_path / "run", lambda snapshot: True, math.inf)
    assert summary is not None
    assert summary["guarantee"] is True
    assert "three mean differences" in summary["statement"]
    assert summary["protects"] == "records"  # its devices move by released numbers alone
    assert 3 * 8 <= summary["bytes_down"] / 6 < 3 * 8 + 16  # three numbers and a few bytes of framing


def test_a_fifth_method_learns(three_ways: str, tmp_path: Path) -> None:
    free = ("privacy.epsilon=inf", "privacy.C=inf", "noise.source=seeded", "train.eval_every=1000")
    config = config_of(f"train.method={three_ways}", "train.rounds=200", "train.eta_m=0.03", *free)
    untrained = start(config_of(*free, "train.rounds=0"), tmp_path / "untrained", lambda snapshot: True, math.inf)
    trained = start(config, tmp_path / "trained", lambda snapshot: True, math.inf)
    assert untrained is not None
    assert trained is not None
    assert trained["private_head"]["test_loss"] < untrained["private_head"]["test_loss"] - 0.1
    assert load_file(tmp_path / "trained" / "weights" / "device-1.safetensors")


def test_a_method_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="three-ways"):
        config_of("train.method=three-ways")


def test_a_fifth_method_without_a_fused_round_is_not_fused(three_ways: str, tmp_path: Path) -> None:
    config = config_of(f"train.method={three_ways}", "noise.source=seeded", "runtime.kind=fused")
    assert why_not(config) == "method three-ways has no fused round"
    with pytest.raises(ConfigError, match="method three-ways has no fused round"):
        start(config, tmp_path / "run", lambda snapshot: True, math.inf)


def test_attacks_leave_out_what_they_cannot_read_of_a_fifth_method_and_say_so(three_ways: str, tmp_path: Path) -> None:
    config = config_of(f"train.method={three_ways}", "train.rounds=6")
    assert start(config, tmp_path / "run", lambda snapshot: True, math.inf, record_view=True) is not None
    done = CliRunner().invoke(app, ["attack", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    assert "the answers of method 'three-ways' are read, so attacks on labels by them are left out." in done.stderr
    attacks = {(row["target"], row["attack"]) for row in json.loads(done.stdout)}
    assert {name for target, name in attacks if target == "labels"} == {
        f"model completion, {each} a class" for each in COMPLETIONS
    }
    assert ("features", "regression, from training") in attacks


def test_whole_runs_of_a_fifth_method_that_nobody_reads_are_not_audited(three_ways: str) -> None:
    config = config_of(f"train.method={three_ways}")
    with pytest.raises(ConfigError, match="method 'three-ways' are read, so whole runs of it cannot be audited"):
        audit(target_of(config, noise_of(config)), 1, lambda finding: None, whole=1)
    with pytest.raises(ConfigError, match="attacks the releases of dpzv, got method 'three-ways'; add --whole 100"):
        audit(target_of(config, noise_of(config)), 1, lambda finding: None)
