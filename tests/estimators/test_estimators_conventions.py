"""scikit-learn's own checks of an estimator, and the tools that rest on them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpzv.rng import numpy_generator
from dpzv.sklearn import VerticalClassifier, VerticalRegressor

QUICK = {"head.refit_steps": 100}
UNFITTED = {"head.final": "private"}
"""Without a final head, whose fit takes most of the time; nothing is learnt then, which most checks do not ask for."""

CANNOT_APPLY: dict[str, str] = {}
"""Checks that these estimators need not pass, with the reason; `check_array_api_input` is skipped by scikit-learn."""


LEARN = re.compile(r"_train|_classes|_pickle|_invariance|_idempotent|_int\b")
"""Checks that are made of estimators that learn."""


@parametrize_with_checks(
    [VerticalClassifier(settings=UNFITTED), VerticalRegressor(settings=UNFITTED)],
    expected_failed_checks=lambda estimator: CANNOT_APPLY,
)
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator.set_params(settings=QUICK) if LEARN.search(check.func.__name__) else estimator)


def shared_task(D: int = 400) -> tuple[pd.DataFrame, pd.Series, dict[str, list[str]]]:
    """Records whose text label needs the columns of both parties: either alone is right in about three of four."""
    rng = numpy_generator("estimators")
    X = pd.DataFrame(rng.normal(size=(D, 4)), columns=["age", "income", "visits", "basket"])
    late = X["age"] + X["basket"] > 0
    return X, late.map({True: "late", False: "in time"}), {"bank": ["age", "income"], "shop": ["visits", "basket"]}


def test_cross_validation_joins_what_either_party_lacks() -> None:
    """With 400 records an accuracy has a standard deviation of at most 0.025; one party reaches 0.75, both far more."""
    X, y, parties = shared_task()
    both, one = (VerticalClassifier(held, settings=QUICK, random_state=0) for held in (parties, None))
    joined = cross_val_score(both, X, y, cv=2, error_score="raise")
    alone = cross_val_score(one, X[parties["bank"]], y, cv=2, error_score="raise")
    assert joined.mean() > 0.87
    assert alone.mean() < 0.82


def test_a_pipeline_and_a_grid_search() -> None:
    X, y, _ = shared_task(200)
    positions = {"bank": [0, 1], "shop": [2, 3]}  # a pipeline hands arrays on
    model = make_pipeline(StandardScaler(), VerticalClassifier(positions, settings=QUICK, random_state=0))
    assert model.fit(X, y).score(X, y) > 0.85
    assert list(model.classes_) == ["in time", "late"]
    columns = FunctionTransformer(lambda frame: frame * 2).set_output(transform="pandas")
    named = make_pipeline(columns, VerticalClassifier({"all": list(X.columns)}, settings=QUICK, random_state=0))
    assert named.fit(X, y).predict(X.iloc[:3]).shape == (3,)
    search = GridSearchCV(
        VerticalClassifier(positions, random_state=0),
        {"settings": [QUICK, UNFITTED], "epsilon": [1.0]},
        cv=2,
        error_score="raise",
    ).fit(X.to_numpy(), y.to_numpy())
    assert search.best_params_["settings"] == QUICK  # a head that was never fitted is no better than a coin
    assert search.best_estimator_.predict_proba(X.to_numpy()).shape == (200, 2)


def test_parameters_and_what_an_unfitted_estimator_says() -> None:
    X, y, parties = shared_task(60)
    asked = VerticalClassifier(parties, ranges=(-4, 4), classes=["in time", "late"], epsilon=0.5, settings=UNFITTED)
    assert clone(asked).get_params() == asked.get_params()
    assert clone(asked).set_params(epsilon=2.0).epsilon == 2.0
    refused = clone(asked).set_params(epsilon=-1)
    with pytest.raises(ValueError, match="epsilon must be above 0"):
        refused.fit(X, y)
    for one in (asked, refused):
        for ask in (one.predict, one.predict_proba, partial(one.score, y=y)):
            with pytest.raises(NotFittedError):
                ask(X)
    fitted = asked.fit(X, y)
    assert list(fitted.feature_names_in_) == list(X.columns)
    assert fitted.n_features_in_ == 4
    assert fitted.n_parties_ == 2


def test_classes_of_any_kind_have_probabilities() -> None:
    rng = numpy_generator("three")
    x = rng.normal(size=(240, 3))
    y = np.digitize(x[:, 0], [-0.5, 0.5]) * 10 - 5  # the classes -5, 5 and 15
    model = VerticalClassifier({"a": [0, 1], "b": [2]}, settings=QUICK, random_state=1).fit(x, y)
    found = model.predict_proba(x)
    assert list(model.classes_) == [-5, 5, 15]
    assert found.shape == (240, 3)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(model.classes_[found.argmax(axis=1)], model.predict(x))
    assert model.score(x, y) > 0.8
    listed = VerticalClassifier(classes=[-5, 5, 15, 25], settings=QUICK, random_state=1).fit(x, y)
    assert listed.predict_proba(x).shape == (240, 4)  # a public class that nobody has is a class
    with pytest.raises(ValueError, match=r"got \d+ that are not, such as .*15"):
        VerticalClassifier(classes=[-5, 5], settings=QUICK).fit(x, y)
    with pytest.raises(ValueError, match="at least two classes, got one class"):
        VerticalClassifier(settings=QUICK).fit(x, np.ones(240))


def test_a_regression_predicts_in_the_labels_own_units() -> None:
    rng = numpy_generator("price")
    x = rng.normal(size=(300, 4))
    y = 250_000 + 40_000 * (x[:, 0] - x[:, 3])
    parties = {"a": [0, 1], "b": [2, 3]}
    for wanted in (None, (100_000, 400_000)):
        model = VerticalRegressor(parties, target_range=wanted, settings=QUICK, random_state=0).fit(x[:200], y[:200])
        assert model.score(x[200:], y[200:]) > 0.95
        assert abs(model.predict(x[200:]).mean() - y[200:].mean()) < 5_000
    with pytest.raises(ValueError, match="target_range must be finite with low < high"):
        VerticalRegressor(target_range=(1, 0)).fit(x, y)
