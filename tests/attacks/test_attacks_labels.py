"""Attacks on labels: each finds a planted leak, finds nothing about shuffled labels, and nothing at epsilon 1."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from attacked_runs import coalition, data, trained, truth

from dpzv.attacks import scored
from dpzv.attacks.findings import AttackRow, RunFacts, area, rows_of, true_mu
from dpzv.attacks.guesswork import cross_fitted, draw
from dpzv.attacks.label_attacks import completion, label_attacks, ratio
from dpzv.attacks.label_inference import likelihood_ratio
from dpzv.attacks.readings import Readings
from dpzv.attacks.scored import Scored, Truth
from dpzv.privacy.statement import read_ledger

NONE = float("inf")
FACTS = RunFacts("m", None, None, "downlink", 0, "arrays")
MANY = (("train", "directions", 32),)
"""As many numbers a message as a batch has records."""
LONG = (("train", "rounds", 64),)
"""Eight passes: one slope and one loss a batch say too little about its labels in two."""


@cache
def rows(method: str, epsilon: float, shuffled: bool, *extra: tuple[str, str, Any]) -> dict[str, AttackRow]:
    """What each attack reaches, by its name."""
    folder = trained(method, epsilon, *extra)
    plan = read_ledger(folder / "ledger.sqlite").plan
    labels: Truth = truth(shuffled=shuffled)
    found, evidence = label_attacks(coalition(folder), labels, plan.sigma_dp)
    all_of_them = [(name, "labels", tries) for name, tries in [*found, *ratio(evidence, labels)]]
    return {row.attack: row for row in rows_of(all_of_them, FACTS, [true_mu(plan)] * len(all_of_them))}


LEAKS = [
    ("vafl", "norm", ()),
    ("vafl", "direction", ()),
    ("vafl", "sign", ()),
    ("dpzv", "sign", MANY),
    ("dpzv", "batch least squares", MANY),
    ("dpzv", "likelihood ratio", MANY),
    ("zoo-vfl", "sign", LONG),
    ("zoo-vfl", "batch least squares", LONG),
    ("zoo-vfl", "likelihood ratio", ()),
    ("vfl-czofo", "sign", ()),
    ("vfl-czofo", "batch least squares", ()),
    ("vfl-czofo", "likelihood ratio", ()),
]


@pytest.mark.parametrize(("method", "attack", "extra"), LEAKS)
def test_an_attack_finds_a_planted_leak_and_nothing_about_shuffled_labels(
    method: str, attack: str, extra: tuple[Any, ...]
) -> None:
    found = rows(method, NONE, False, *extra)[attack]
    assert found.leaks
    assert found.interval[0] > 0.6
    assert found.floor < 0.65
    assert found.ceiling == 1
    shuffled = rows(method, NONE, True, *extra)[attack]
    assert not shuffled.leaks
    assert shuffled.interval[0] <= 0.5 <= shuffled.interval[1]


@pytest.mark.parametrize(("method", "extra"), [("vafl", ()), ("dpzv", MANY), ("zoo-vfl", ()), ("vfl-czofo", ())])
def test_at_epsilon_one_nothing_leaks_and_nothing_is_above_the_ceiling(method: str, extra: tuple[Any, ...]) -> None:
    found = rows(method, 1.0, False, *extra)
    assert len(found) == 3
    assert not any(row.leaks or row.broken for row in found.values())
    # nothing is known of coins without the run, so the ceiling is that of the curve alone, up to chance
    assert all(0.55 < row.ceiling < 0.85 for row in found.values())


@pytest.mark.parametrize("method", ["vafl", "dpzv", "zoo-vfl", "vfl-czofo"])
def test_weights_that_noise_has_sent_beyond_all_bounds_are_attacked_like_others(method: str) -> None:
    """The server takes such rows for zeros, and so do the attacks."""
    found, evidence = label_attacks(coalition(trained(method, 1.0, ("train", "eta_m", 1e37))), truth(), 1.0)
    assert not evidence.end[0].any()
    for _, tries in [*found, *ratio(evidence, truth()), *completion(evidence)]:
        assert all(np.isfinite(one.guess).all() for one in tries)


@pytest.mark.parametrize("method", ["vafl", "zoo-vfl"])
def test_noise_on_the_uplink_hides_no_label(method: str) -> None:
    """The published rule at epsilon 1: the attack still works, and no ceiling is claimed."""
    extra = (("noise", "where", "uplink"), ("privacy", "accounting", "paper"))
    found = rows(method, 1.0, False, *extra)["direction" if method == "vafl" else "likelihood ratio"]
    assert found.interval[0] > found.floor
    assert found.leaks or method != "vafl"
    assert found.ceiling == 1


def test_gradients_are_scored_on_the_records_that_came_back() -> None:
    """Two rounds of each device are a quarter of the records for each; what never came back is no failed guess."""
    folder = trained("vafl", NONE, ("train", "rounds", 4))
    seen = np.unique(np.concatenate([turn.ids for turn in coalition(folder).turns()]))
    assert len(seen) < 200
    found, _ = label_attacks(coalition(folder), truth(), 0.0)
    asked = np.setdiff1d(seen, draw(truth().train, 2, 10, 0).ids)
    for _, (tried,) in found:
        assert np.array_equal(tried.y, truth().train[asked])
        assert tried.guess.shape == tried.floor.shape == (len(asked), 2)
    score = {name: rows_of([(name, "labels", tries)], FACTS, [NONE])[0].score for name, tries in found}
    assert min(score["direction"], score["sign"]) > 0.99


@pytest.mark.parametrize("method", ["vafl", "vfl-czofo"])
def test_a_sample_of_records_is_scored_as_all_of_them_are(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record that is scored has the guess that it has if all are scored."""
    whole, _ = label_attacks(coalition(trained(method)), truth(), 0.0)
    monkeypatch.setattr(scored, "MOST_SCORED", 100)
    monkeypatch.setattr(scored, "MOST_OTHERS", 50)
    some, evidence = label_attacks(coalition(trained(method)), truth(), 0.0)
    everybody = np.setdiff1d(np.arange(256), draw(truth().train, 2, 10, 0).ids)
    places = np.searchsorted(everybody, evidence.sample.train)
    assert len(places) == 100
    for (name, (few,)), (_, (all_of_them,)) in zip(some, whole, strict=True):
        assert np.array_equal(few.y, all_of_them.y[places])
        if name in ("norm", "sign", "batch least squares") and method == "vfl-czofo":
            np.testing.assert_allclose(few.guess, all_of_them.guess[places])
        else:
            assert abs(area(few.guess, few.y).value - area(all_of_them.guess, all_of_them.y).value) < 0.1
    for name, tries in [*ratio(evidence, truth()), *completion(evidence)]:
        assert all(len(one.guess) <= 100 for one in tries), name
        assert all(one.unseen is not None and len(one.unseen) <= 50 for one in tries), name


@pytest.mark.parametrize("wrong", ["scale", "sign", "everything"])
def test_a_likelihood_ratio_with_a_wrong_stand_in_falls_to_its_floor_and_not_below(wrong: str) -> None:
    """Three labels, a good guess without the run, and totals of which the stand-in explains nothing or the opposite."""
    draw_of, n, R, size, labels = np.random.default_rng(2), 900, 60, 300, 3
    y = draw_of.integers(0, labels, n)
    prior = np.where(np.arange(labels) == y[:, None], 2.0, 0.0) + draw_of.normal(size=(n, labels))
    ids = np.stack([draw_of.permutation(n)[:size] for _ in range(R)])
    adds = draw_of.normal(size=(R, size, labels)).astype(np.float32)
    own = np.take_along_axis(adds, y[ids][:, :, None], axis=2).sum(axis=(1, 2))
    total = {"scale": 3 * own, "sign": -own, "everything": own.std() * draw_of.normal(size=R)}[wrong]
    readings = Readings(total, ids, adds, np.zeros_like(adds), 0.0)
    guess = likelihood_ratio(readings, y, Scored(np.arange(n), np.arange(n)), prior, prior)
    assert area(guess.train, y).value > area(prior, y).value - 0.01
    right = Readings(own + 0.1 * draw_of.normal(size=R), ids, adds, np.zeros_like(adds), 0.0)
    found = likelihood_ratio(right, y, Scored(np.arange(n), np.arange(n)), prior, prior)
    assert area(found.train, y).value > 0.999


def test_gradients_without_noise_tell_nearly_every_label_of_a_binary_task() -> None:
    assert max(rows("vafl", NONE, False)[attack].interval[0] for attack in ("norm", "direction", "sign")) > 0.95


LEARNT = {
    "dpzv": (*MANY, ("train", "rounds", 200)),
    "vafl": (("train", "rounds", 200),),
    "zoo-vfl": (("train", "rounds", 800),),
    "vfl-czofo": (("train", "rounds", 200),),
}
"""How long each method trains until its devices have learnt what the labels are."""


@cache
def completed(method: str, shuffled: bool) -> tuple[AttackRow, ...]:
    """Model completion with 1, 10 and 40 labelled records a class."""
    folder = trained(method, NONE, ("train", "eta_m", 0.05), *LEARNT[method], kind="sum")
    labels = truth("sum", shuffled=shuffled)
    _, evidence = label_attacks(coalition(folder), labels, 0.0)
    return tuple(rows_of([(name, "labels", tries)], FACTS, [NONE])[0] for name, tries in completion(evidence))


@pytest.mark.parametrize("method", LEARNT)
def test_model_completion_uses_what_the_networks_have_learnt_about_everybody(method: str) -> None:
    """It is far above its floor, also on records that were not trained on, and better with more labelled records."""
    found = completed(method, False)
    assert [row.attack for row in found] == [f"model completion, {each} a class" for each in (1, 10, 40)]
    for row, above in zip(found, (0.15, 0.2, 0.08), strict=True):
        assert row.score > row.floor + above
        assert row.interval[0] < row.score < row.interval[1]
        assert row.unseen is not None
    assert found[1].unseen is not None
    assert found[1].unseen > found[1].floor + 0.1
    assert found[0].score < found[1].score - 0.05
    assert found[0].interval[1] - found[0].interval[0] > found[2].interval[1] - found[2].interval[0]


@pytest.mark.parametrize("method", LEARNT)
def test_model_completion_knows_nothing_about_shuffled_labels(method: str) -> None:
    for row in completed(method, True):
        assert abs(row.score - 0.5) < 0.1
        assert not row.leaks


def test_known_records_are_some_of_each_label_and_the_same_for_the_same_draw() -> None:
    y = data().y_train
    known = draw(y, 2, 10, 3)
    assert np.bincount(known.y).tolist() == [10, 10]
    assert np.array_equal(known.y, y[known.ids])
    assert np.array_equal(draw(y, 2, 10, 3).ids, known.ids)
    assert not np.array_equal(draw(y, 2, 10, 4).ids, known.ids)
    assert len(known.others(len(y))) == len(y) - 20


def test_a_records_own_label_does_not_enter_its_cross_fitted_guess() -> None:
    x, y = data("sum").x_train[0], data("sum").y_train
    flipped = y.copy()
    flipped[7] = 1 - flipped[7]
    assert np.array_equal(cross_fitted(x, y, 2)[7], cross_fitted(x, flipped, 2)[7])
