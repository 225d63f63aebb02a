"""What the estimators make of records: joined by index, shared out by party, encoded by public numbers or refused."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from dpzv.privacy.statement import spent
from dpzv.rng import numpy_generator
from dpzv.sklearn import VerticalClassifier, VerticalRegressor, join_parties
from dpzv.sklearn.party_columns import PartyColumns

QUICK = {"head.refit_steps": 100}
UNFITTED = {"head.final": "private"}  # without a final head, whose fit takes most of the time
TRAINED = UNFITTED | {"train.rounds": 2}
JOBS = ["clerk", "nurse", "pilot"]


def two_frames(D: int = 200) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """A bank's and a shop's columns of the same people, in the same order, and a label that needs both."""
    rng = numpy_generator("frames")
    ids = [f"id-{i}" for i in range(D)]
    bank = pd.DataFrame(rng.normal(size=(D, 2)), index=ids, columns=["age", "income"])
    shop = pd.DataFrame(rng.normal(size=(D, 2)), index=ids, columns=["age", "basket"])
    return bank, shop, bank["age"] + shop["basket"] > 0


def shuffled(frame: Any, seed: int) -> Any:
    """The rows in another order."""
    return frame.iloc[numpy_generator(seed, "shuffle").permutation(len(frame))]


def test_frames_in_any_order_are_joined_by_index() -> None:
    bank, shop, y = two_frames()
    model = VerticalClassifier(settings=QUICK, random_state=0).fit({"bank": bank, "shop": shop}, y)
    mixed = VerticalClassifier(settings=QUICK, random_state=0).fit(
        {"bank": bank, "shop": shuffled(shop, 1)}, shuffled(y, 2)
    )
    expected = model.predict_proba({"bank": bank, "shop": shop})
    assert np.array_equal(mixed.predict_proba({"bank": bank, "shop": shuffled(shop, 3)}), expected)
    assert list(model.feature_names_in_) == ["bank.age", "bank.income", "shop.age", "shop.basket"]
    assert mixed.score({"bank": shuffled(bank, 4), "shop": shop}, y) > 0.9
    # one frame with labels in another order is joined, too; by position half of the labels would be wrong
    X, parties = join_parties({"bank": bank, "shop": shop})
    one = VerticalClassifier(parties, settings=QUICK, random_state=0).fit(X, shuffled(y, 5))
    assert np.array_equal(one.predict_proba(X), expected)
    assert one.score(X, shuffled(y, 6)) > 0.9


def test_only_records_that_all_parties_and_the_labels_have_are_trained_on() -> None:
    bank, shop, y = two_frames()
    with pytest.warns(UserWarning, match=r"only 100 are shared by all \(party-1 has 150, party-2 has 150\)"):
        X, parties = join_parties([bank.iloc[:150], shuffled(shop.iloc[50:], 1)])
    assert list(X.index) == list(bank.index[50:150])
    assert parties == {"party-1": ["party-1.age", "party-1.income"], "party-2": ["party-2.age", "party-2.basket"]}
    assert X["party-2.basket"].equals(shop["basket"].iloc[50:150].rename("party-2.basket"))
    frames = {"bank": bank.iloc[:150], "shop": shop.iloc[50:]}
    with pytest.warns(UserWarning, match="are left out") as told:
        few = VerticalClassifier(settings=TRAINED, random_state=0).fit(frames, y.iloc[60:])
    assert "only 90 of the 100 records that all parties hold have a label" in str(told[1].message)
    same = VerticalClassifier(settings=TRAINED, random_state=0).fit(
        {"bank": bank.iloc[60:150], "shop": shop.iloc[60:150]}, y.iloc[60:150]
    )
    new = {"bank": bank.iloc[:9], "shop": shop.iloc[:9]}
    assert np.array_equal(few.predict_proba(new), same.predict_proba(new))
    with pytest.raises(ValueError, match=r"every record at every party, got \{'bank': 9, 'shop': 8\} of which 8"):
        few.predict({"bank": bank.iloc[:9], "shop": shop.iloc[:8]})


BANK, SHOP, Y = two_frames(80)
BAD: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "repeated ids": ({}, {"a": BANK, "b": pd.concat([SHOP, SHOP[:1]])}, Y, "the index of 'b' .*1 repeated ids.*'id-0'"),
    "nothing shared": ({}, {"a": BANK, "b": SHOP.set_index(SHOP.index + "x")}, Y, "got none that a, b share"),
    "labels without ids": ({}, {"a": BANK, "b": SHOP}, Y.to_numpy(), "joined by index, got ndarray without one"),
    "labels of others": ({}, BANK, Y.set_axis(Y.index + "x"), "0 shared records of 80 in X and 80 in y"),
    "fewer labels": ({}, BANK, Y[:70], "70 shared records of 80 in X and 70 in y"),
    "repeated labels": ({}, BANK, pd.concat([Y, Y[:1]]), "the index of y must name every record once"),
    "arrays by party": ({}, {"a": BANK.to_numpy()}, Y, "pandas DataFrame, got another kind for .*a"),
    "parties twice": ({"parties": {"a": ["age"]}}, {"a": BANK}, Y, "got `parties` too; leave it out"),
    "unknown column": ({"parties": {"a": ["age", "wage"]}}, BANK, Y, "got 'wage' for 'a', which is not in X"),
    "held twice": ({"parties": {"a": ["age"], "b": [0, 1]}}, BANK, Y, "got 0 for 'b', which 'a' holds already"),
    "held by nobody": ({"parties": {"a": ["age"]}}, BANK, Y, "got nobody for 'income'"),
    "nothing held": ({"parties": {"a": [0, 1], "b": []}}, BANK, Y, "got no column for 'b'"),
    "range of nothing": ({"ranges": {"wage": (0, 1)}}, BANK, Y, "ranges must be of columns of X, got 'wage'"),
    "range upside down": ({"ranges": {"age": (1, 0)}}, BANK, Y, "needs finite low < high"),
    "three numbers": ({"ranges": {"age": (0, 1, 2.5)}}, BANK, Y, "must be .low, high., got 3 numbers"),
    "mixed values": ({"ranges": {"age": [1, "b"]}}, BANK, Y, "all text or all whole"),
    "same names": ({}, BANK.set_axis(["age", "age"], axis=1), Y, "must have different names, got age, age"),
    "text": ({}, BANK.assign(job="clerk"), Y, "got texts in 'job'"),
    "dates": ({}, BANK.assign(since=pd.Timestamp("2020-02-01")), Y, "got dates or times in 'since'; turn them into a"),
    "days": ({}, BANK.assign(since=date(2020, 2, 1)), Y, "got dates or times in 'since'"),
    "no label": ({}, BANK, Y.astype(object).where(BANK["age"] > 0, None), r"y contains NaN or None for \d+ of 80"),
    "budget in words": ({"epsilon": "much"}, BANK, Y, "epsilon must be a number above 0, got 'much'"),
    "delta in words": ({"delta": None}, BANK, Y, "delta must be a number above 0, got None"),
    "missing": ({}, BANK.replace(BANK["age"].iloc[0], np.nan), Y, "contains NaN"),
    "sparse": ({}, scipy.sparse.csr_array(BANK.to_numpy()), Y, "Sparse data was passed"),
    "own key": ({"settings": {"privacy.epsilon": 2}}, BANK, Y, "got 'privacy.epsilon'; set the parameter `epsilon`"),
    "data": ({"settings": {"data.name": "digits"}}, BANK, Y, "got 'data.name'; leave it out"),
    "network": ({"settings": {"runtime.kind": "network"}}, BANK, Y, 'runtime.kind must be .* here, got "network"'),
    "unknown key": ({"settings": {"train.round": 2}}, BANK, Y, "did you mean 'train.rounds'"),
    "no budget": ({"epsilon": 0}, BANK, Y, "privacy.epsilon must be above 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_trained_on_is_refused_in_a_sentence(name: str) -> None:
    parameters, X, y, sentence = BAD[name]
    with pytest.raises(TypeError if name == "sparse" else ValueError, match=sentence):
        VerticalClassifier(**parameters).fit(X, y)


def test_a_regression_refuses_labels_that_are_no_numbers() -> None:
    for labels, sentence in (
        (Y.map(str), "such as '(True|False)'; give numbers"),
        (BANK["age"].where(Y), "NaN or None for"),
    ):
        with pytest.raises(ValueError, match=sentence):
            VerticalRegressor().fit(BANK, labels)


def test_the_choice_of_the_final_head_is_told_and_so_is_training_in_vain() -> None:
    bank, _, y = two_frames()
    model = VerticalClassifier(settings=QUICK, random_state=0).fit(bank, y)
    assert model.final_head_["name"] == min(model.final_head_["losses"], key=model.final_head_["losses"].get)
    assert model.final_head_["setting"].startswith("penalty")
    assert model.final_head_["untrained_loss"] is None
    in_vain = QUICK | {"train.rounds": 2, "train.eta_m": 0.0}  # devices that stay where they start
    with pytest.warns(UserWarning, match=r"training the parties added nothing: .* no budget is spent"):
        same = VerticalClassifier(settings=in_vain, random_state=0).fit(bank, y)
    assert same.final_head_["untrained_loss"] == min(same.final_head_["losses"].values())
    assert VerticalClassifier(settings=UNFITTED).fit(bank, y).final_head_ is None


def test_public_ranges_and_values_encode_each_record_by_itself() -> None:
    """The oracle: a range becomes -1..1, clipped; values become a column each, and one for all that are not listed."""
    x = np.array([[18.0, 2, 5, 1], [100, 0, 5, 2], [59, 1, 7, 9], [200, 3, 9, 3]])
    ranges = {"age": (18, 100), "job": JOBS, 3: [1, 2, 3]}  # texts come as their places; 3 stands for the last place
    columns = PartyColumns(["age", "job", "free", "code"], x[:3], {"a": ["age", "free"], "b": [1, 3]}, ranges)
    with pytest.warns(UserWarning, match="1 of 4 values of column '(job|code)' are not among those") as told:
        a, b = columns.encoded(x)
    assert len(told) == 2
    assert columns.parties == ("a", "b")
    assert columns.read_off == ["free"]
    deviation = np.std([5, 5, 7])
    assert np.allclose(a[:, 0], [-1, 1, 0, 1])
    assert np.allclose(a[:, 1], (x[:, 2] - 17 / 3) / deviation)
    jobs = [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    codes = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert np.array_equal(b, np.hstack([jobs, codes]))


def test_texts_that_are_listed_are_learnt_from_and_others_are_told_of() -> None:
    rng = numpy_generator("jobs")
    X = pd.DataFrame({"job": rng.choice(JOBS, 200), "age": rng.normal(size=200)})
    y = X["job"] == "pilot"
    model = VerticalClassifier(ranges={"job": JOBS}, settings=QUICK, random_state=0).fit(X, y)
    assert model.score(X, y) == 1
    assert model.score(X.astype({"job": "category"}), y) == 1
    with pytest.warns(UserWarning, match="3 of 3 values of column 'job' are not among those that `ranges` lists"):
        model.predict(X[:3].assign(job="Clerk"))
    with pytest.raises(ValueError, match="contains NaN"):
        model.predict(X[:3].assign(job=None))


def test_a_party_with_many_columns_sends_as_many_numbers() -> None:
    """Narrower, they would be random mixtures of the columns, and the parties would be trained at a cost."""
    x = numpy_generator("many").normal(size=(80, 70))
    model = VerticalClassifier({"a": list(range(69)), "b": [69]}, settings=UNFITTED).fit(x, x[:, 0] > 0)
    assert model.epsilon_ == 0


RANGED = {"ranges": (-4, 4), "classes": [False, True]}


@pytest.mark.parametrize(
    ("given", "guarantee", "reason"),
    [
        (RANGED, True, "exact account"),
        (RANGED | {"random_state": 0}, False, "simulated noise"),
        (RANGED | {"ranges": None}, False, r"read off the records \(age, income\); give their public `ranges`"),
        (RANGED | {"ranges": {"age": (-4, 4)}}, False, r"read off the records \(income\)"),
        (RANGED | {"classes": None}, False, "the list of classes was read off the labels; give `classes`"),
        (RANGED | {"ranges": None, "settings": TRAINED | {"privacy.protects": "labels"}}, True, "exact account"),
        (RANGED | {"epsilon": np.inf}, False, "no privacy was asked for"),
        ({"settings": UNFITTED}, True, "nothing is released"),
    ],
    ids=["public", "seeded", "no ranges", "one range", "classes", "labels only", "no privacy", "nothing released"],
)
def test_a_guarantee_needs_secret_noise_and_public_numbers(given: Any, guarantee: bool, reason: str) -> None:
    model = VerticalClassifier(**{"settings": TRAINED} | given).fit(BANK, Y)
    assert model.guarantee_ is guarantee
    line = next(line for line in model.statement_.splitlines() if "Guarantee:" in line)
    assert model.epsilon_ == pytest.approx(0 if "nothing" in reason else given.get("epsilon", 1))
    assert f"{'yes' if guarantee else 'no'}: " in line
    assert re.search(reason, line)
    assert "earlier steps of a pipeline" in model.statement_
    assert "cross-validation or a search, whose epsilons add up" in model.statement_


def test_a_number_needs_a_public_range_too() -> None:
    number = BANK["age"] * 2 + 1
    for wanted, guarantee in ((None, False), ((-10, 10), True)):
        model = VerticalRegressor(ranges=(-4, 4), target_range=wanted, settings=TRAINED).fit(BANK, number)
        assert model.guarantee_ is guarantee
        assert ("give their public `target_range`" in model.statement_) is not guarantee


def test_parties_are_trained_where_they_send_less_than_they_hold_and_the_run_can_be_kept(tmp_path: Path) -> None:
    narrow = UNFITTED | {"devices.embedding": 1}
    model = VerticalClassifier({"a": [0], "b": [1]}, settings=narrow).fit(BANK, Y)
    assert model.epsilon_ == 0  # one number of one column says all
    model = VerticalClassifier(settings=narrow).fit(BANK, Y, out=tmp_path / "run")
    assert model.epsilon_ == pytest.approx(1)
    assert spent([tmp_path / "run"]).epsilon == model.epsilon_
    assert spent([tmp_path / "run"]).releases == 20
    after = VerticalClassifier(settings=narrow | {"privacy.parents": [str(tmp_path / "run")]}, epsilon=2)
    assert "earlier run" in after.fit(BANK, Y).statement_
    assert VerticalClassifier(settings=narrow).fit(BANK[:60], Y[:60]).epsilon_ == 0  # too few for a batch of 64
