"""What is odd about a party's file is counted, with the lines where it begins; a guessed separator is said."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv.data import rows
from dpzv.data.columns import Column
from dpzv.data.party_records import FeatureSettings, LabelSettings, read_features, read_labels
from dpzv.errors import DataError

CSV = """\
id,sex,age,children,town
1,male,17,2,x
2,Male,44,,x
3,female,99,1,x

4,Female,30,7,x
5,,120,,x
6,MALE,18,0,x
"""


def column(name: str, kind: Any, **given_settings: Any) -> Column:
    return Column(device=1, name=name, kind=kind, source="Made up for this test.", **given_settings)


SEX = column("sex", "category", values=("Male", "Female"))
AGE = column("age", "range", low=18, high=75)
CHILDREN = column("children", "knots", knots=(0, 1, 3), missing=True)
TOWN = column("town", "category", values=("x", "y"))


def read(path: Path, text: str | bytes, *columns: Column, name: str = "own.csv") -> Any:
    (path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return read_features(FeatureSettings(file=str(path / name), id="id", columns=columns))


def test_odd_values_are_counted_with_their_first_lines(tmp_path: Path) -> None:
    """Line 5 of the file is empty: lines are those that an editor shows."""
    table = read(tmp_path, CSV, SEX, AGE, CHILDREN, TOWN)
    assert [tally.notes() for tally in table.tallies] == [
        [
            "column 'sex': 3 of 6 values, the first in lines 2, 4 and 8, are not listed and become zeros: 'male' (1, "
            "perhaps 'Male'), 'female' (1, perhaps 'Female'), 'MALE' (1, perhaps 'Male').",
            "column 'sex': 1 of 6 values, the first in line 7, are missing; no column says so (`missing = true` adds "
            "one).",
        ],
        ["column 'age': 3 of 6 values, the first in lines 2, 4 and 7, lie outside 18 to 75 and are clipped to it."],
        [
            "column 'children': 1 of 6 values, the first in line 6, lie outside 0 to 3 and are clipped to it.",
            "column 'children': 2 of 6 values, the first in lines 3 and 7, are missing; their own column says so.",
        ],
        ["column 'town': all 6 rows are encoded alike, so it tells nothing."],
    ]
    assert [bool(tally.warning()) for tally in table.tallies] == [True, False, False, False]
    warning = table.tallies[0].warning()
    assert "3 of 6 values" in warning
    assert "male" not in warning  # a log may go elsewhere; it holds no value
    assert "for this party alone" in warning


def test_values_with_a_column_of_their_own_are_no_reason_for_a_warning(tmp_path: Path) -> None:
    other = column("sex", "category", values=("Male", "Female"), other=True)
    (tally,) = read(tmp_path, CSV, other).tallies
    assert tally.warning() == ""
    assert "go into the column for other values" in tally.notes()[0]


@settings(max_examples=30)
@given(
    words=st.lists(st.sampled_from(["a", "b", "A", "", "NA", "7.5", "-1", "3"]), min_size=1, max_size=40),
    block=st.integers(1, 9),
)
def test_counts_are_those_of_the_rows_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], block: int
) -> None:
    """Against a count in plain Python; however the file is cut into blocks, the first lines are the same."""
    text = "id,w,n\n" + "".join(f"{i},{word},{i % 5}\n" for i, word in enumerate(words))
    text_column, number = column("w", "category", values=("a", "b")), column("n", "range", low=1, high=3)
    path = tmp_path_factory.mktemp("odd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_BLOCK_ROWS", block)
        table = read(path, text, text_column, number)
    unlisted = [i + 2 for i, word in enumerate(words) if word in ("A", "7.5", "-1", "3")]
    missing = [i + 2 for i, word in enumerate(words) if word in ("", "NA")]
    clipped = [i + 2 for i in range(len(words)) if not 1 <= i % 5 <= 3]
    first, second = table.tallies
    assert (first.unlisted.count, first.unlisted.lines) == (len(unlisted), unlisted[:3])
    assert (first.missing.count, first.missing.lines) == (len(missing), missing[:3])
    assert (second.clipped.count, second.clipped.lines) == (len(clipped), clipped[:3])
    assert first.words.total() == len(unlisted)
    for tally, x in ((first, table.x[:, :2]), (second, table.x[:, 2:])):
        assert tally.constant == (len(np.unique(x, axis=0)) == 1)


@pytest.mark.parametrize(
    ("separator", "words"), [(";", "separated by ';'"), ("\t", "separated by tabs"), ("|", "separated by '|'")]
)
@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress])
def test_another_separator_is_read_and_said(
    tmp_path: Path, separator: str, words: str, quote: str, pack: Callable[[bytes], bytes]
) -> None:
    lines = ["id,sex,age", "a,Male,20", "b,Female,40"]
    other = "\n".join(separator.join(f"{quote}{word}{quote}" for word in line.split(",")) for line in lines)
    name = "own.csv" if pack(b"x") == b"x" else "own.csv.gz"
    table = read(tmp_path, pack(b"\xef\xbb\xbf" + other.encode()), SEX, AGE, name=name)
    plain = read(tmp_path, "\n".join(lines), SEX, AGE)
    np.testing.assert_array_equal(table.x, plain.x)
    assert table.ids == plain.ids
    assert words in table.separated
    assert plain.separated == ""


def test_a_comma_stays_the_separator_where_it_names_the_columns(tmp_path: Path) -> None:
    """What rows hold does not count, and neither does a name that holds another separator."""
    table = read(tmp_path, "id,sex,a;b;c;d\n1,Male,x;y;z\n2,Male;,x\n", SEX)
    assert table.separated == ""
    assert table.tallies[0].unlisted.lines == [3]


def test_labels_say_separator_clips_and_lines(tmp_path: Path) -> None:
    def labels(text: str, **given_settings: Any) -> Any:
        (tmp_path / "labels.csv").write_text(text)
        return read_labels(LabelSettings(file=str(tmp_path / "labels.csv"), id="id", label="y", **given_settings))

    table = labels("id;y\n1;5\n2;11\n", task="regression", low=0, high=10)
    assert "separated by ';'" in table.separated
    assert table.warning() == "1 of 2 labels lie outside data.labels.low to high and are clipped to it."
    with pytest.raises(DataError, match=r"1 of 2 are .*the first in line 3\); .*, and write decimals with a point"):
        labels("id;y\n1;5\n2;1,1\n", task="regression", low=0, high=10)
    with pytest.raises(DataError, match=r"2 of 3 labels are missing or have .* \(the first in lines 2 and 4"):
        labels("id,y\n1,No\n2,no\n3,\n", task="binary", classes=("no", "yes"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused_by_its_name(tmp_path: Path, encoding: str) -> None:
    mark = "" if encoding == "utf-16" else "\ufeff"
    with pytest.raises(DataError, match=r"CSV file in UTF-8, got UTF-16; save it as CSV in UTF-8\."):
        read(tmp_path, (mark + CSV).encode(encoding), SEX)
