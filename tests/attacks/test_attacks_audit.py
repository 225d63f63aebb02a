"""The audit as a whole: below the claim for every shipped recipe, close to it in the tight case, and its command."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import typer
from attack_targets import strategy, target
from msgspec.structs import replace
from scipy.special import ndtri
from tests.plans import cost_of
from typer.testing import CliRunner

from dpzv import config as configuration
from dpzv import recipes
from dpzv.attacks.audit import CONFIDENCE, STRATEGIES, Finding, Strategy, attack, audit, strategies
from dpzv.attacks.lower_bound import Evidence
from dpzv.attacks.strategies import FEW, both_worlds
from dpzv.attacks.target import Target, target_of
from dpzv.cli.audit_command import audit as command
from dpzv.declarations import HEAD_RULES, METHODS
from dpzv.errors import ConfigError, DpzvError, PrivacyRefused
from dpzv.privacy.gdp import epsilon_of
from dpzv.privacy.label_counts import LabelCounts
from dpzv.privacy.noise import ExactNoise


def shipped(name: str, **sections: dict[str, Any]) -> Target:
    """A shipped recipe as a target, with some keys changed; the attacks are on releases of one number."""
    sections = {"train": {"directions": 1}, **sections}
    return target_of(configuration.parse(configuration.merge(recipes.tree(name), sections)), ExactNoise())


def never_wrong(attacked: Target, n: int) -> Evidence:
    """Scores that tell the two worlds apart in every run."""
    return Evidence(np.full(n, -1.0), np.full(n, 1.0), 0.0, cost_of(releases=0.25), 1e-5, 1.0)


APART = Strategy(name="never-wrong", catches="everything", play=never_wrong, most=50)


def tight(trials: int, epsilon: float) -> float:
    """The lower bound over the claim, in mu: frozen head, releases only, a canary at the clip in its only batch."""
    found = attack(target(epsilon=epsilon), strategy("matched-filter"), trials)
    assert found.trials == trials
    assert found.lower_bound <= found.claim == epsilon
    return found.noise_factor


@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_stays_below_its_claim(name: str) -> None:
    attacked = shipped(name)
    outcome = audit(attacked, 20, lambda finding: None)
    mechanism = HEAD_RULES[attacked.config.head.rule].mechanism
    applies = [s.name for s in strategies(attacked.config.train.directions) if s.mechanism in ("", mechanism)]
    assert [finding.strategy for finding in outcome.findings] == applies
    assert not outcome.above
    assert outcome.claim == attacked.config.privacy.epsilon
    assert outcome.noise_source == "exact"


@pytest.mark.soak
@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_stays_below_its_claim_in_many_runs(name: str) -> None:
    assert not audit(shipped(name), 20_000, lambda finding: None).above


def test_methods_and_heads_are_attacked_by_what_they_are_and_not_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under other names they get all strategies, those for the private steps of the head too."""
    monkeypatch.setitem(METHODS, "new-dpzv", replace(METHODS["dpzv"], name="new-dpzv"))
    monkeypatch.setitem(HEAD_RULES, "new-sgd", replace(HEAD_RULES["dp-sgd"], name="new-sgd"))
    attacked = shipped("digits", train={"method": "new-dpzv", "directions": 2}, head={"rule": "new-sgd"})
    outcome = audit(attacked, 2, lambda finding: None)
    assert [finding.strategy for finding in outcome.findings] == [one.name for one in STRATEGIES]


def test_counts_of_labels_do_not_tell_the_worlds_apart() -> None:
    """The head starts at a noisy base rate, which is drawn again for every world; an attack must not see two draws."""
    attacked = shipped("flights-scorecard")
    with attacked.machine(B=FEW, batches=3, rounds=3) as one, attacked.machine(B=FEW, batches=3, rounds=3) as other:
        charged = [event for machine in (one, other) for event in machine.run.ledger.charged]
        assert len({event.counts for event in charged if isinstance(event, LabelCounts)}) == 2
    first, second, _ = both_worlds(
        attacked, 1, FEW, lambda machine, world: machine.run.server.method.head.state_dict()["base"].clone()
    )
    assert torch.equal(first, second)


def test_a_joint_head_and_short_numbers_stay_below_the_claim() -> None:
    attacked = shipped("digits", head={"rule": "joint-zo"}, codec={"name": "float16"})
    assert not audit(attacked, 50, lambda finding: None).above


def test_the_tight_case_shows_most_of_the_claim() -> None:
    assert tight(5_000, epsilon=5.0) >= 0.7


@pytest.mark.soak
def test_the_tight_case_at_epsilon_one_in_1e5_runs() -> None:
    assert tight(100_000, epsilon=1.0) >= 0.8


def test_the_confidence_is_shared_between_all_strategies_for_this_many_directions() -> None:
    assert CONFIDENCE == 0.9999
    assert len({s.name for s in STRATEGIES}) == len(STRATEGIES) == 8
    assert [len(strategies(K)) for K in (1, 2, 32)] == [7, 8, 8]
    for K, share in ((1, 7), (2, 8)):
        # no errors in n runs: the bound of each rate solves (1 - rate)^n = alpha/2
        rate = 1 - ((1 - CONFIDENCE) / share / 2) ** (1 / 50)
        assert attack(target(K=K), APART, 50).lower_bound == pytest.approx(epsilon_of(-2 * ndtri(rate), 1e-5))


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"rounds": 0}},
        {"privacy": {"epsilon": float("inf")}},
        {"privacy": {"accounting": "paper"}},
        {"data": {"name": "mine"}},
    ],
)
def test_without_a_claim_there_is_nothing_to_audit(sections: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(ConfigError):
        shipped("breast-cancer", **sections)


def run_command(*arguments: str) -> tuple[str, DpzvError | None]:
    """What the command prints, and the error it ends with."""
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, DpzvError), result.exception
    return result.stdout, result.exception


def test_the_command_prints_the_worst_finding_as_json() -> None:
    out, error = run_command("breast-cancer", "--trials", "50", "--json")
    values = json.loads(out)
    assert error is None
    assert {"claim", "lower_bound", "confidence", "trials", "strategy"} <= set(values)
    assert (values["claim"], values["confidence"], values["trials"]) == (5, 0.9999, 50)
    assert values["lower_bound"] <= values["claim"]


def test_the_worst_finding_is_that_of_the_larger_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that leans on no curve may be above the claim where the other is not; the refusal is about that one."""

    def found(attacked: Target, strategy: Strategy, trials: int, share: int = 0) -> Finding:
        plain = 5.5 if strategy.name == "negative" else 0.5
        return Finding(strategy.name, strategy.catches, 5.0, 4.0 if plain < 1 else 3.0, plain, 0.9, trials)

    monkeypatch.setattr("dpzv.attacks.audit.attack", found)
    out, error = run_command("breast-cancer", "--trials", "5", "--json")
    assert json.loads(out)["strategy"] == "negative"
    assert isinstance(error, PrivacyRefused)
    assert "'negative' shows an epsilon of at least 5.5 where 5 is claimed" in str(error)


def test_the_command_refuses_a_claim_that_rests_on_seeded_noise() -> None:
    out, error = run_command("breast-cancer", "--trials", "200", "--set", "noise.source=seeded")
    assert isinstance(error, PrivacyRefused)
    assert "known-seeds" in str(error)
    verdicts = {
        line.split()[0]: line.split()[-1] for line in out.splitlines() if line.split()[-1:] in (["below"], ["ABOVE"])
    }
    assert verdicts.pop("known-seeds") == "ABOVE"
    assert set(verdicts.values()) == {"below"}
