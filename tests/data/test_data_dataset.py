"""A data set is checked before anything trains on it, and refusals are sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv.data.dataset import Dataset, Records, check, fingerprint_of, from_arrays, held_out
from dpzv.errors import ConfigError


def small(**changes: Any) -> Dataset:
    given: dict[str, Any] = {
        "x_train": [np.arange(12.0).reshape(6, 2), np.ones((6, 1))],
        "y_train": np.array([0, 1, 0, 1, 0, 1]),
        "x_test": [np.zeros((2, 2)), np.ones((2, 1))],
        "y_test": np.array([0, 1]),
        "task": "binary",
    }
    given |= changes
    train, test = (Records(given.pop(f"x_{part}"), given.pop(f"y_{part}")) for part in ("train", "test"))
    return from_arrays(train, test, **given)


def test_arrays_become_a_checked_data_set() -> None:
    data = small()
    assert [x.dtype for x in data.x_train] == [np.float32, np.float32]
    assert data.y_train.dtype == np.int64
    assert (data.n_classes, data.devices) == (2, ("device-1", "device-2"))
    assert small(x_train=[np.zeros((6, 2), np.uint8)] * 2, x_test=[np.zeros((2, 2))] * 2).x_train[0].dtype == np.uint8
    assert small(task="regression", y_train=np.arange(6), y_test=[0.5, 1.0]).y_train.dtype == np.float32
    assert small(task="classes", n_classes=3, y_train=[0.0, 1.0, 2.0, 0.0, 1.0, 2.0]).y_train.tolist() == [0, 1, 2] * 2


def test_only_int32_is_taken_for_token_ids() -> None:
    ids = np.arange(12, dtype=np.int32).reshape(6, 2)
    data = small(x_train=[ids, ids.astype(np.int64)], x_test=[ids[:2], ids[:2]])
    assert [x.dtype for x in data.x_train] == [np.int32, np.float32]
    assert np.array_equal(data.x_train[0], ids)
    with pytest.raises(ConfigError, match=r"device 1 are int32, thus token ids from 0, got -1; convert"):
        small(x_train=[ids - 1, ids], x_test=[ids[:2], ids[:2]])


@given(st.integers(4, 300), st.floats(0.01, 0.99))
def test_a_holdout_parts_the_training_records(D: int, share: float) -> None:
    ids = np.arange(D)
    whole = small(
        x_train=[ids[:, None], ids[:, None]], y_train=ids / 7, x_test=[[[-1.0]]] * 2, y_test=[0.0], task="regression"
    )
    if not 0 < round(share * D) < D:
        with pytest.raises(ConfigError, match="must leave training and test records"):
            held_out(whole, share)
        return
    part = held_out(whole, share)
    assert len(part.y_test) == round(share * D)
    assert sorted([*part.x_train[0][:, 0], *part.x_test[0][:, 0]]) == ids.tolist()
    for x, y in ((part.x_train, part.y_train), (part.x_test, part.y_test)):
        assert np.array_equal(x[0], x[1])
        assert np.array_equal(y, (x[0][:, 0] / 7).astype(np.float32))
    assert part.fingerprint == held_out(whole, share).fingerprint != whole.fingerprint


def test_a_holdout_says_what_it_is() -> None:
    part = held_out(small(), 0.34)
    assert part.name == "arrays-holdout"
    assert part.source.endswith("2 of its 6 training records are held out for test.")
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="must leave training and test records"):
            held_out(small(), share)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": [np.ones((6, 2)), np.ones((5, 1))]}, "6 labels and 6 rows at device 1, 5 rows at device 2"),
        ({"y_train": np.array([0, 1])}, "2 labels and 6 rows at device 1"),
        ({"y_test": np.array([0, 1, 1])}, "same test records"),
        ({"x_train": [], "x_test": []}, "0 devices, got 0 and 0"),
        ({"x_test": [np.zeros((2, 2))]}, "2 devices, got 2 and 1"),
        ({"x_test": [np.zeros((2, 3)), np.ones((2, 1))]}, "device 1 has 2 columns in training and 3 in test"),
        ({"x_train": [np.ones(6), np.ones((6, 1))]}, r"\[records, columns\], got \[6\]"),
        ({"x_train": [[["a", "b"]] * 6, np.ones((6, 1))]}, "device 1 must be numbers"),
        ({"x_train": [[[1, 2], [1]], np.ones((6, 1))]}, "rectangular"),
        ({"x_train": [np.full((6, 2), 1e300), np.ones((6, 1))]}, "6 NaN or infinite values in column 0"),
        ({"y_train": np.zeros(6, int)}, "at least two classes, got 6 labels that are all 0"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 2])}, "between 0 and 1, got int64 between 0 and 2"),
        ({"y_train": np.array([-1, 1, 1, -1, 1, 1])}, "between -1 and 1"),
        ({"y_train": np.array([0.5, 1, 0, 0, 0, 1])}, "whole numbers from 0"),
        ({"y_train": np.array(["yes", "no"] * 3)}, "whole numbers from 0"),
        ({"y_train": np.zeros((6, 1), int)}, r"one value a record, got shape \(6, 1\)"),
        ({"task": "classes"}, "n_classes must be .* got 0"),
        ({"task": "binry"}, "did you mean 'binary'"),
        ({"task": "regression", "y_train": [1.0, np.nan, 0, 0, 0, 0]}, "finite float32"),
        ({"task": "regression", "y_train": ["a"] * 6}, "must be numbers"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small(**changes)


def test_no_records_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one training record, got none"):
        small(x_train=[np.zeros((0, 2)), np.zeros((0, 1))], y_train=np.zeros(0, int))


def test_a_value_that_is_not_finite_is_named_by_device_column_and_count() -> None:
    second = np.ones((6, 3))
    second[[0, 4], 1] = np.nan
    second[2, 2] = np.inf
    with pytest.raises(ConfigError, match=r"2 NaN or infinite values in column 1 .* of device 2 \(and 1 more"):
        small(x_train=[np.ones((6, 2)), second], x_test=[np.ones((2, 2)), np.ones((2, 3))])


def test_arrays_of_another_type_put_in_by_hand_are_refused() -> None:
    data = small()
    with pytest.raises(ConfigError, match="must be float32, uint8 or int32, got float64"):
        check(replace(data, x_train=(data.x_train[0].astype(np.float64), data.x_train[1])))


def test_the_fingerprint_names_labels_features_and_their_order() -> None:
    base = small()
    assert base.fingerprint == small().fingerprint
    assert len(base.fingerprint) == 64
    changed = np.arange(12.0).reshape(6, 2)
    changed[5, 1] += 1e-5
    others = [
        small(x_train=[changed, np.ones((6, 1))]),
        small(y_train=np.array([1, 0, 0, 1, 0, 1])),
        small(x_train=[np.arange(12.0).reshape(6, 2)[::-1], np.ones((6, 1))]),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert small(y_test=np.array([1, 0])).fingerprint == base.fingerprint


def test_the_fingerprint_keeps_its_parts_apart() -> None:
    assert fingerprint_of([b"ab", b"c"]) != fingerprint_of([b"a", b"bc"])
    assert fingerprint_of([np.zeros((2, 3))]) != fingerprint_of([np.zeros((3, 2))])
    assert fingerprint_of([np.arange(4)[::2]]) == fingerprint_of([np.array([0, 2])])
    assert fingerprint_of([np.zeros(0)]) != fingerprint_of([])
