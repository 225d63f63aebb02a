"""A party's own file becomes numbers by public settings alone; what is wrong with it is said in counts."""

from __future__ import annotations

import datetime
import gzip
import importlib.util
import math
import re
import sys
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv import recipes
from dpzv.config import parse as parse_config
from dpzv.data import rows
from dpzv.data.columns import Column, encode, of_device
from dpzv.data.party_records import (
    FeatureSettings,
    LabelSettings,
    PartyData,
    in_units,
    parse,
    read_features,
    read_labels,
)
from dpzv.data.sets import flights
from dpzv.errors import ConfigError, DataError

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "data.md"
needs_parquet = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="Parquet files need the optional package pyarrow"
)


def column(name: str, kind: Any, **given_settings: Any) -> Column:
    return Column(device=1, name=name, kind=kind, source="Made up for this test.", **given_settings)


COLUMNS = (
    column("speed", "range", low=0, high=10, missing=True),
    column("speed", "knots", knots=(0, 4, 8)),
    column("city", "category", values=("b", "7", "None"), other=True, missing=True),
    column("month", "category", values=(1, 12)),
    column("late", "flag", missing=True),
)
CSV = """\
id,speed,city,month,late,unused
 1 ,5,b,1,true,x
01,,7,12.0,False,x

a,25, NA,3,0,x
"b, c",-1e3,None,,2,x
é,1,z,12,,x
"""
# columns: speed scaled, missing | three knots | b, 7, None, other, missing | month 1, 12 | late, missing
ENCODED = [
    [0, 0, 0, 0.75, 0.25, 1, 0, 0, 0, 0, 1, 0, 1, 0],
    [0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0],
    [1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0],
    [-1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    [-0.8, 0, 0.75, 0.25, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1],
]


def put(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def features(file: str, *columns: Column) -> FeatureSettings:
    return FeatureSettings(file=file, id="id", columns=columns or (column("x", "range", low=0, high=1),))


def labels(file: str, **given_settings: Any) -> LabelSettings:
    return LabelSettings(
        **({"file": file, "id": "id", "label": "y", "task": "binary", "classes": ("no", "yes")} | given_settings)
    )


def test_every_kind_is_read_from_csv_as_the_tables_say(tmp_path: Path) -> None:
    got = read_features(features(put(tmp_path / "a.csv", CSV), *COLUMNS))
    assert got.ids == ["1", "01", "a", "b, c", "é"]
    assert got.x.dtype == np.float32
    assert got.x.tolist() == np.array(ENCODED, dtype=np.float32).tolist()


def test_gzip_a_byte_order_mark_and_small_blocks_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.CSV.gz"
    file.write_bytes(gzip.compress(b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()))
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 2)
    got = read_features(features(str(file), *COLUMNS))
    assert got.ids == ["1", "01", "a", "b, c", "é"]
    assert got.x.tolist() == np.array(ENCODED, dtype=np.float32).tolist()


@needs_parquet
def test_parquet_gives_what_csv_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 50
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "id": np.arange(n, dtype=np.int64) + 2**60,  # as a float two neighbours would be one
            "speed": np.where(rng.random(n) < 0.2, np.nan, rng.normal(5, 5, n)),
            "city": rng.choice(np.array(["b", "7", "None", "z", None], dtype=object), n),
            "month": pd.array(rng.choice([1, 12, 5, None], n), dtype="Int64"),
            "late": pd.array(rng.choice([True, False, None], n), dtype="boolean"),
            "y": rng.choice([0, 1], n),
        }
    )
    frame["city"] = frame["city"].astype("category")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 16)
    left, right = (read_features(features(str(tmp_path / name), *COLUMNS)) for name in ("a.csv", "a.parquet"))
    assert left.ids == right.ids == [str(2**60 + i) for i in range(n)]
    assert np.array_equal(left.x, right.x)
    assert (left.x.sum(axis=0) != 0).all()  # every encoded column is met
    for setting in ({"classes": ("1", "0")}, {"task": "regression", "classes": None, "low": 0, "high": 4}):
        one, other = (read_labels(labels(str(tmp_path / name), **setting)) for name in ("a.csv", "a.parquet"))
        assert one.ids == other.ids == left.ids
        assert np.array_equal(one.y, other.y)


@needs_parquet
def test_decimals_are_numbers_and_dates_are_not(tmp_path: Path) -> None:
    file = str(tmp_path / "a.parquet")
    day = datetime.date(2013, 1, 1)
    pd.DataFrame({"id": ["a", "b"], "x": [Decimal("0.50"), None], "day": [day, day], "f": [1.5, 2.5]}).to_parquet(file)
    assert read_features(features(file)).x.tolist() == [[0], [0]]
    with pytest.raises(DataError, match=r"'day' of .* must hold numbers, but 2 of 2 values"):
        read_features(features(file, column("day", "flag")))
    with pytest.raises(DataError, match=r"'f' of .* must hold text or whole numbers, but 2 of 2"):
        read_features(features(file, column("f", "category", values=("1.5",))))
    with pytest.raises(DataError, match="ids in column 'f'"):
        read_features(FeatureSettings(file=file, id="f", columns=(column("x", "flag"),)))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # what Python itself does to forbid an import
    with pytest.raises(DataError, match="run `pip install pyarrow`"):
        read_features(features(put(tmp_path / "a.parquet", "")))


@needs_parquet
def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="should be a Parquet file"):
        read_features(features(put(tmp_path / "a.parquet", "no Parquet")))


def test_flights_read_as_three_parties_equal_the_flights_data_set(tmp_path: Path) -> None:
    columns = parse_config(recipes.tree("flights")).data.columns
    raw = flights.raw()
    sample = np.random.default_rng(5).permutation(len(raw.y))[:1500]
    for m, frame in enumerate(raw.frames, 1):
        part = frame.iloc[sample]
        file = str(tmp_path / f"device-{m}.csv")
        part.assign(id=sample).to_csv(file, index=False)
        mine = of_device(columns, m)
        got = read_features(features(file, *mine))
        assert got.ids == [str(i) for i in sample]
        assert np.array_equal(got.x, encode(frame, mine)[sample])
    file = str(tmp_path / "labels.csv")
    pd.DataFrame({"id": sample, "y": np.where(raw.y[sample], "late", "in time")}).to_csv(file, index=False)
    assert np.array_equal(read_labels(labels(file, classes=("in time", "late"))).y, raw.y[sample])


CELLS = st.one_of(st.floats(allow_nan=False).map(repr), st.sampled_from(["", "NA", " 3 ", "true", "-7", "1e9"]))


@given(st.lists(st.tuples(CELLS, st.sampled_from(["b", "7", " b", "z", "null"])), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_row_is_read_the_same_whatever_the_others_hold(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    head = "id,speed,city,month,late\n"
    lines = [f"{i},{number},{word},{number},{number}\n" for i, (number, word) in enumerate(cells)]
    together = read_features(features(put(folder / "a.csv", head + "".join(lines)), *COLUMNS))
    alone = [read_features(features(put(folder / "b.csv", head + line), *COLUMNS)).x for line in lines]
    assert np.array_equal(together.x, np.vstack(alone))
    assert np.isfinite(together.x).all()
    assert ((together.x.astype(np.float64) ** 2).sum(axis=1) <= len(COLUMNS) + 1e-6).all()


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("id,x\n", DataError, "must have rows"),
        ("", DataError, "must name its columns, but the file is empty"),
        ("secret-1,secret-2\nsecret-3,1\n", ConfigError, "first line of .* must name its columns"),
        ("id,y\n1,2\n", ConfigError, "has no column 'x'; choose one of: id, y"),
        ("key,x\n1,2\n", ConfigError, "has no column 'id'"),
        ("id,x,x\n1,2,3\n", ConfigError, "2 columns called 'x'"),
        ("id,x\nsecret-1,1\nb,1\nsecret-1 ,0\nb,1\nb,0\n", DataError, "3 of 5 rows repeat .*stands in 3 rows"),
        ("id,x\nsecret-1,1\n,1\n  ,0\n", DataError, "2 of 3 have none"),
        ("id,x\na,1\nb,secret-1\nc,secret-2\nd,NA\n", DataError, "must hold numbers, but 2 of 4 values"),
        ("id,x\na,1\nb,1,2\nc\n", DataError, "the 2 columns of its first line, but 2 have more or fewer"),
        ('id,x\na,"1\n', DataError, "reading it failed"),
        ("id x\na 1\n", ConfigError, "none of the 1 there"),
        ("id;x\na;1,5\n", DataError, r"1 of 1 values .*\(the first in line 2\).*, and write decimals with a point"),
        ("id,x\na,1\n\nb,secret-1\n", DataError, r"1 of 2 values are .*\(the first in line 4\)"),
        ('id,x\n"a\nb",1\nc,2\nd,\nc,5\nd,1\n', DataError, "2 of 5 rows repeat an earlier one, the first in line 6 "),
        ("id,x\na,1\n,0\n", DataError, "1 of 2 have none, the first in line 3;"),
        ("id,x\na,1\nb\n", DataError, "but 1 have more or fewer, the first in line 3;"),
    ],
)
def test_a_wrong_file_is_refused_in_counts_without_its_values(
    tmp_path: Path, text: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as refused:
        read_features(features(put(tmp_path / "a.csv", text)))
    assert "secret" not in str(refused.value)


def test_a_missing_folder_or_damaged_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="but it does not exist"):
        read_features(features(str(tmp_path / "gone.csv")))
    with pytest.raises(DataError, match="but it does not exist"):
        read_labels(labels(str(tmp_path) + "/gone.parquet"))
    whole = gzip.compress(b"id,x\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(2000)))
    for name, content in (
        ("cut", whole[: len(whole) // 2]),
        ("none", b"id,x\n1,2\n"),
        ("other", whole[:99] + b"0" * 99),
    ):
        (tmp_path / f"{name}.csv.gz").write_bytes(content)
        with pytest.raises(DataError, match="reading it failed"):
            read_features(features(str(tmp_path / f"{name}.csv.gz")))
    (tmp_path / "latin.csv").write_bytes("id,x\nZürich,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="CSV file in UTF-8"):
        read_features(features(str(tmp_path / "latin.csv")))


def test_classes_are_numbered_by_the_public_list(tmp_path: Path) -> None:
    file = put(tmp_path / "a.csv", "y,id\nyes,1\n no ,2\nyes,3\n")
    assert read_labels(labels(file)).y.tolist() == [1, 0, 1]
    swapped = read_labels(labels(file, classes=("yes", "no")))
    assert (swapped.ids, swapped.y.tolist(), swapped.y.dtype) == (["1", "2", "3"], [0, 1, 0], np.int64)
    unused = ("never", "yes", "NA", "no")  # a class need not occur, and a listed class is never missing
    assert read_labels(labels(file, task="classes", classes=unused)).y.tolist() == [1, 3, 1]
    file = put(tmp_path / "b.csv", "id,y\n1,NA\n2,no\n")
    assert read_labels(labels(file, task="classes", classes=unused)).y.tolist() == [2, 3]


def test_labels_of_a_regression_are_clipped_scaled_and_scaled_back(tmp_path: Path) -> None:
    file = put(tmp_path / "a.csv", "id,y\n1,100\n2,250\n3,-5\n4,1e9\n5,600\n")
    given_settings = labels(file, task="regression", classes=None, low=100, high=500)
    got = read_labels(given_settings)
    assert (got.y.tolist(), got.y.dtype, got.clipped) == ([-1, -0.25, -1, 1, 1], np.float32, 3)
    assert in_units(given_settings, got.y).tolist() == [100, 250, 100, 500, 500]
    with pytest.raises(ConfigError, match="only a regression has a range"):
        in_units(labels(file), got.y)


def test_unknown_labels_are_refused_with_their_number(tmp_path: Path) -> None:
    file = put(tmp_path / "a.csv", "id,y\n1,yes\n2,secret\n3,\n4,no\n")
    with pytest.raises(DataError, match=r"the 2 values of data\.labels\.classes, but 2 of 4") as refused:
        read_labels(labels(file))
    assert "secret" not in str(refused.value)
    with pytest.raises(DataError, match="must hold numbers, but 4 of 4"):
        read_labels(labels(file, task="regression", classes=None, low=0, high=1))
    with pytest.raises(DataError, match="1 of 2 rows repeat"):
        read_labels(labels(put(tmp_path / "b.csv", "id,y\n1,yes\n1,no\n")))
    with pytest.raises(ConfigError, match="no column 'late'"):
        read_labels(labels(file, label="late"))


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"classes": None}, "exactly two data.labels.classes, got 0"),
        ({"classes": ("a", "b", "c")}, "exactly two data.labels.classes, got 3"),
        ({"task": "classes", "classes": ("a",)}, "two or more data.labels.classes, got 1"),
        ({"classes": ("a", "a")}, "different texts"),
        ({"classes": ("a", " b")}, "without spaces"),
        ({"classes": ("a", "")}, "different texts"),
        ({"low": 0.0}, "are for a regression, but task is 'binary'"),
        ({"task": "regression"}, "but task is 'regression'"),
        ({"task": "regression", "classes": None}, "finite data.labels.low < high, got None, None"),
        ({"task": "regression", "classes": None, "low": 1, "high": 1}, "got 1, 1"),
        ({"task": "regression", "classes": None, "low": 0, "high": math.inf}, "finite"),
        ({"task": "regression", "classes": None, "low": math.nan, "high": 1}, "finite"),
        ({"label": "id"}, "are both 'id'"),
        ({"file": "a.xlsx"}, "must end in .csv, .csv.gz or .parquet, got 'a.xlsx'"),
    ],
)
def test_labels_that_make_no_sense_are_refused(given_settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        labels(**({"file": "a.csv"} | given_settings))


def test_features_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one column"):
        FeatureSettings(file="a.csv", id="id", columns=())
    with pytest.raises(ConfigError, match=r"the id column .id. is also in"):
        features("a.csv", column("id", "flag"))
    with pytest.raises(ConfigError, match="spaces around them"):
        features("a.csv", column("x", "category", values=("a", "b ")))
    with pytest.raises(ConfigError, match=r"data\.features\.file must end in"):
        features("a.json")


TREE = """
[features]
file = "part/a.csv"
id = "id"
columns = [
  { name = "x", kind = "flag", source = "Made up." },
  { device = 3, name = "z", kind = "flag", source = "So." },
]
[labels]
file = "/b.parquet"
id = "id"
label = "y"
task = "classes"
classes = ["1", "2", "3"]
"""


def test_settings_come_from_toml_without_device_numbers(tmp_path: Path) -> None:
    got = parse(tomllib.loads(TREE), tmp_path)
    assert got.features == FeatureSettings(
        file=str(tmp_path / "part" / "a.csv"),
        id="id",
        columns=tuple(Column(device=1, name=n, kind="flag", source=s) for n, s in (("x", "Made up."), ("z", "So."))),
    )
    assert got.labels == LabelSettings(file="/b.parquet", id="id", label="y", task="classes", classes=("1", "2", "3"))
    assert parse({"labels": tomllib.loads(TREE)["labels"]}, tmp_path).features is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[features]", "[feature]", "the key 'data.feature' is not known; did you mean 'features'"),
        ('label = "y"', 'lable = "y"', "the key 'data.labels.lable' is not known; did you mean 'label'"),
        ('name = "x"', 'nam = "x"', r"columns\[0\]\.nam' is not known; did you mean 'name'"),
        ('label = "y"', "", "the key 'data.labels.label' is missing; add it"),
        ('"classes"', '"sorting"', "data.labels.task: the value 'sorting' is not known"),
        ('["1", "2", "3"]', "[1, 2, 3]", "expected `str`, got `int`; write text in quotes"),
        ("columns = [", "columns = [7,", "expected `object`, got `int`"),
        (', source = "Made up."', "", "columns\\[0\\].source' is missing; add it"),
        ("part/a.csv", "part/a.txt", "data.features.file must end in"),
    ],
)
def test_wrong_settings_are_one_sentence_that_names_the_key(old: str, new: str, words: str) -> None:
    assert old in TREE
    with pytest.raises(ConfigError, match=words) as refused:
        parse(tomllib.loads(TREE.replace(old, new, 1)), Path())
    assert "\n" not in str(refused.value)


def test_a_party_without_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither features nor labels"):
        parse({}, Path())


def of_page(block: str) -> PartyData:
    return parse(tomllib.loads(block)["data"], Path())


def test_the_settings_on_the_page_are_valid() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    parties = [of_page(block) for block in blocks if "[data." in block]
    kinds = {column.kind for party in parties if party.features for column in party.features.columns}
    assert kinds == {"range", "knots", "category", "flag"}
    assert {party.labels.task for party in parties if party.labels} == {"binary", "regression"}
    assert PAGE.read_text().count("\n") < 170
