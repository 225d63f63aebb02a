"""Areas and their errors against other ways to compute them, and ceilings against the best test there is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from sklearn.metrics import roc_auc_score
from tests.plans import asked

from dpzv.attacks.findings import RunFacts, Tried, area, ceiling, difference, rows_of, true_mu
from dpzv.attacks.scored import MOST_OTHERS, MOST_SCORED, sampled
from dpzv.privacy.accountant import gaussian_mu, tpr_of_parts
from dpzv.privacy.planning import make_plan

GENERATOR = np.random.default_rng(0)


def guess_of(score: np.ndarray) -> np.ndarray:
    return np.stack([-score, score], axis=1)


def test_the_area_is_that_of_scikit_learn() -> None:
    y = GENERATOR.integers(0, 2, 300)
    score = np.round(y + GENERATOR.normal(size=300), 1)  # with ties
    assert area(guess_of(score), y).value == pytest.approx(roc_auc_score(y, score))
    classes, table = GENERATOR.integers(0, 4, 300), GENERATOR.normal(size=(300, 4))
    table[np.arange(300), classes] += 1
    each = [roc_auc_score(classes == label, table[:, label]) for label in range(4)]
    assert area(table, classes).value == pytest.approx(np.mean(each))
    answers = GENERATOR.integers(0, 2, (300, 4))
    each = [roc_auc_score(answers[:, j], table[:, j]) for j in range(4)]
    assert area(table, answers).value == pytest.approx(np.mean(each))


def test_the_error_is_the_spread_of_many_samples() -> None:
    values, errors, gaps, gap_errors = [], [], [], []
    for _ in range(200):
        y = np.arange(200) % 3 // 2
        first = y + GENERATOR.normal(size=200)
        second = first + GENERATOR.normal(size=200)
        found, other = area(guess_of(first), y), area(guess_of(second), y)
        gap, error = difference(found, other, paired=True)
        values.append(found.value)
        errors.append(found.error)
        gaps.append(gap)
        gap_errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.2)
    assert np.mean(gap_errors) == pytest.approx(np.std(gaps), rel=0.2)


def test_what_is_the_same_for_all_records_is_no_guess() -> None:
    y = np.arange(50) % 2
    assert area(np.zeros((50, 2)), y).value == 0.5
    assert math.isnan(area(np.zeros((50, 2)), np.zeros(50, np.int64)).value)


@pytest.mark.parametrize("mu", [0.0, 0.27, 1.0])
def test_the_ceiling_is_reached_by_the_best_test_and_by_no_other(mu: float) -> None:
    """Something known in advance, and a Gaussian look: the sum of both log-likelihood ratios is the best test."""
    n = 40_000
    y = (GENERATOR.random(n) < 0.4).astype(np.int64)
    known = GENERATOR.binomial(3, 0.35 + 0.3 * y).astype(np.float64)  # the more, the likelier is label 1
    look = mu * y + GENERATOR.normal(size=n)
    share = {level: np.mean(y[known == level]) for level in np.unique(known)}
    ratio = np.array([math.log(max(share[k], 1e-9) / max(1 - share[k], 1e-9)) for k in known])
    best = area(guess_of(np.clip(ratio, -20, 20) + mu * (look - mu / 2)), y)
    limit = ceiling(guess_of(known), y, mu)
    assert abs(best.value - limit) < 4 * best.error + 1e-3
    assert area(guess_of(look), y).value < limit + 4 * best.error


def test_of_nothing_known_the_ceiling_is_that_of_the_curve() -> None:
    y = np.arange(100) % 2
    assert ceiling(np.zeros((100, 2)), y, 1.0) == pytest.approx(ndtr(1 / math.sqrt(2)))
    assert ceiling(np.zeros((100, 2)), y, 0.0) == 0.5
    assert ceiling(np.zeros((100, 2)), y, math.inf) == 1.0


def test_without_a_claim_against_devices_there_is_no_ceiling() -> None:
    assert true_mu(make_plan(asked(epsilon=math.inf))) == math.inf
    assert true_mu(make_plan(asked(accounting="paper"))) == math.inf


def test_the_mu_of_a_plan_bounds_its_curve_everywhere() -> None:
    frozen = make_plan(asked())
    assert true_mu(frozen) == pytest.approx(gaussian_mu(frozen.cost, "replace-one"))
    plan = make_plan(asked(head_rule="dp-sgd", head_batch=64, head_steps=20))
    mu = true_mu(plan)
    for fpr in (0.0015, 0.013, 0.2, 0.4):
        assert tpr_of_parts(plan.cost, fpr) <= ndtr(ndtri(fpr) + mu)
    assert mu < 1.5 * true_mu(frozen)


def test_a_row_says_whether_a_score_is_above_floor_and_ceiling() -> None:
    y = np.arange(2000) % 2
    strong, weak = (guess_of(factor * y + GENERATOR.normal(size=2000)) for factor in (2.0, 0.0))
    facts = RunFacts("m", 1.0, 1.0, "downlink", 0, "d")

    def row(guess: np.ndarray, floor: np.ndarray, unseen: np.ndarray | None, mu: float) -> tuple[bool, bool]:
        tried = Tried(guess, floor, y, unseen, None if unseen is None else y)
        (found,) = rows_of([("a", "labels", [tried])], facts, [mu])
        assert found.interval[0] < found.score < found.interval[1]
        return found.leaks, found.broken

    assert row(strong, weak, None, math.inf) == (True, False)
    assert row(strong, weak, weak, 0.1) == (True, True)
    assert row(strong, weak, strong, 0.1) == (False, False)  # as good on records that were not there
    assert row(strong, strong, None, math.inf) == (False, False)
    assert row(weak, weak, weak, 0.1) == (False, False)


def test_of_many_records_a_fixed_sample_of_those_that_took_part_is_scored() -> None:
    few = sampled(np.arange(5, 50), np.arange(30))
    assert (few.train.tolist(), few.test.tolist()) == (list(range(5, 50)), list(range(30)))
    took = np.arange(100_000) * 3
    many = sampled(took, np.arange(MOST_OTHERS + 1))
    assert len(np.unique(many.train)) == MOST_SCORED
    assert len(np.unique(many.test)) == MOST_OTHERS
    assert np.isin(many.train, took).all()
    assert np.all(np.diff(many.train) > 0)
    assert np.array_equal(many.train, sampled(took, np.arange(3)).train)
    assert abs(np.mean(many.train) / np.mean(took) - 1) < 0.05
