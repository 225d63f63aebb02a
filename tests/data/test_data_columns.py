"""Columns are encoded by public constants alone, row by row."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv.data.columns import Column, encode, of_device, width
from dpzv.errors import ConfigError


def column(name: str, kind: Any, **settings: Any) -> Column:
    return Column(device=1, name=name, kind=kind, source="Made up for this test.", **settings)


FRAME = pd.DataFrame(
    {
        "speed": [0.0, 5.0, 25.0, np.nan],
        "city": ["a", "b", "z", None],
        "month": [1, 12, 3, 13],
        "late": [True, False, True, False],
    }
)


def test_each_kind_is_encoded_as_the_table_says() -> None:
    got = encode(FRAME, [column("speed", "range", low=0, high=10, missing=True)])
    assert got.tolist() == [[-1, 0], [0, 0], [1, 0], [0, 1]]
    got = encode(FRAME, [column("speed", "knots", knots=(0, 4, 8), missing=True)])
    assert got.tolist() == [[1, 0, 0, 0], [0, 0.75, 0.25, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    got = encode(FRAME, [column("city", "category", values=("b", "a"))])
    assert got.tolist() == [[0, 1], [1, 0], [0, 0], [0, 0]]
    got = encode(FRAME, [column("city", "category", values=("b", "a"), other=True, missing=True)])
    assert got.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    got = encode(FRAME, [column("month", "category", values=(1, 3, 12)), column("late", "flag")])
    assert got.tolist() == [[1, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]]
    assert got.dtype == np.float32


def test_whole_numbers_with_gaps_still_match_their_categories() -> None:
    frame = pd.DataFrame({"month": [1.0, np.nan, 2.5]})
    got = encode(frame, [column("month", "category", values=(1, 2), other=True, missing=True)])
    assert got.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-20, 20))
COLUMNS = [
    column("x", "range", low=-3, high=7, missing=True),
    column("x", "knots", knots=(-5, -1, 0, 2.5), missing=True),
    column("k", "category", values=("p", "q"), other=True, missing=True),
    column("x", "flag", missing=True),
]


@given(st.lists(st.tuples(NUMBERS, st.sampled_from(["p", "q", "r", None])), min_size=1, max_size=20))
def test_rows_are_finite_bounded_and_do_not_see_each_other(rows: list[tuple[float, str | None]]) -> None:
    frame = pd.DataFrame({"x": [x for x, _ in rows], "k": pd.Series([k for _, k in rows], dtype=object)})
    got = encode(frame, COLUMNS)
    assert got.shape == (len(rows), width(COLUMNS))
    assert np.isfinite(got).all()
    assert ((got.astype(np.float64) ** 2).sum(axis=1) <= len(COLUMNS) + 1e-6).all()
    alone = np.vstack([encode(frame.iloc[[i]], COLUMNS) for i in range(len(rows))])
    assert np.array_equal(got, alone)


@given(st.lists(st.floats(-6, 4), min_size=1, max_size=20))
def test_a_linear_map_of_knots_interpolates_linearly(values: list[float]) -> None:
    knots, heights = (-5.0, -1.0, 0.0, 2.5), np.array([3.0, -2.0, 7.0, 1.0])
    got = encode(pd.DataFrame({"x": values}), [column("x", "knots", knots=knots)])
    assert np.allclose(got @ heights, np.interp(values, knots, heights), atol=1e-5)


def test_columns_come_from_toml_and_unknown_keys_are_refused() -> None:
    text = 'device = 2\nname = "x"\nkind = "range"\nlow = 0\nhigh = 10\nsource = "A norm."\n'
    read = msgspec.toml.decode(text, type=Column)
    assert (read.device, read.low, read.high) == (2, 0.0, 10.0)
    assert of_device([read, column("y", "flag")], 2) == (read,)
    with pytest.raises(msgspec.ValidationError, match="lowest"):
        msgspec.toml.decode(text + "lowest = 1\n", type=Column)
    with pytest.raises(msgspec.ValidationError, match="source"):
        msgspec.toml.decode(text.replace("source", "#"), type=Column)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "range"}, "finite low < high, got None and None"),
        ({"kind": "range", "low": 3, "high": 3}, "got 3 and 3"),
        ({"kind": "range", "low": 0, "high": float("inf")}, "finite"),
        ({"kind": "range", "low": 0, "high": 1, "values": ("a",)}, "takes no 'values'"),
        ({"kind": "flag", "low": 0.0}, "takes no 'low'"),
        ({"kind": "knots", "knots": (1.0,)}, "two or more"),
        ({"kind": "knots", "knots": (1.0, 0.0)}, "increasing"),
        ({"kind": "category"}, "list of different values"),
        ({"kind": "category", "values": ("a", "a")}, "list of different values"),
        ({"kind": "category", "values": ("a", 1)}, "all text or all whole numbers"),
        ({"kind": "flag", "source": " "}, "source sentence"),
        ({"kind": "flag", "device": 0}, "at least 1, got 0"),
    ],
)
def test_a_column_that_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    given_settings: dict[str, Any] = {"device": 1, "name": "x", "source": "Made up."}
    with pytest.raises(ConfigError, match=words):
        Column(**(given_settings | settings))


def test_a_frame_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'speed'"):
        encode(FRAME, [column("sped", "flag")])
    with pytest.raises(ConfigError, match="'city' of kind 'range' must hold numbers"):
        encode(FRAME, [column("city", "range", low=0, high=1)])
    with pytest.raises(ConfigError, match="'month' holds numbers, but its category values are such as '1'"):
        encode(FRAME, [column("month", "category", values=("1", "2"))])
    with pytest.raises(ConfigError, match="'city' holds text"):
        encode(FRAME, [column("city", "category", values=(1, 2))])
