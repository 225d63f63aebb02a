"""A party's own file: a device's ids and features, the server's ids and labels, from CSV or Parquet.

The party's settings alone say how values are read: a row becomes the same numbers whatever the other rows of the file
hold.

    used as                           text (CSV, or text in Parquet)               Parquet's own types
    id                                as written, without spaces around it         whole numbers as decimal text
    label of a class, text category   the same; empty or a missing word: missing   the same; booleans: True, False
    all other kinds, regression       a decimal number, or true or false           numbers and booleans; null: missing

These words mean missing, in upper or lower case: na, n/a, nan, none, null, <na>, #n/a, and the empty text; a category
or class that is listed is never missing. See `dpzv.data.columns` for what a missing or unlisted feature becomes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.columns import Column, encode, width
from dpzv.data.rows import ENDINGS, Block, blocks, number_of, present, text_of
from dpzv.errors import ConfigError, DataError
from dpzv.terms import Task
from dpzv.validate import converted

__all__ = ["FeatureSettings", "LabelSettings", "PartyData", "in_units", "parse", "read_features", "read_labels"]


class FeatureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[data.features]: a device's file, its id column, and how its feature columns are encoded."""

    file: str
    id: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        _check_file("data.features.file", self.file)
        if not self.columns:
            raise ConfigError("data.features.columns must list at least one column, got none; name one with its kind.")
        for column in self.columns:
            if column.name == self.id:
                raise ConfigError(f"the id column '{self.id}' is also in data.features.columns; remove it there.")
            if any(isinstance(value, str) and value != value.strip() for value in column.values):
                raise ConfigError(
                    f"data column '{column.name}' lists values with spaces around them, but values of the file are "
                    "read without such spaces; remove the spaces."
                )


class LabelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[data.labels]: the server's file, its id column and its label column.

    classes: the public list of label values, in the order of their numbers from 0, for `binary` (exactly two; the
    second is 1) and `classes`. low, high: the public range of a `regression`; labels outside are clipped to it.
    """

    file: str
    id: str
    label: str
    task: Task
    classes: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        _check_file("data.labels.file", self.file)
        if self.label == self.id:
            raise ConfigError(f"data.labels.label and data.labels.id are both '{self.id}'; name two columns.")
        if self.task == "regression":
            if self.classes is not None:
                raise ConfigError("data.labels.classes is for classes, but task is 'regression'; give low and high.")
            low, high = self.low, self.high
            if low is None or high is None or not -math.inf < low < high < math.inf:
                raise ConfigError(f"a regression needs finite data.labels.low < high, got {low}, {high}; set both.")
            return
        if self.low is not None or self.high is not None:
            raise ConfigError(f"data.labels.low and high are for a regression, but task is '{self.task}'; remove them.")
        given = self.classes or ()
        if len(given) < 2 or (self.task == "binary" and len(given) != 2):
            wanted = "exactly two" if self.task == "binary" else "two or more"
            raise ConfigError(
                f"task '{self.task}' needs {wanted} data.labels.classes, got {len(given)}; list the label values, "
                "from documentation and not from the file."
            )
        if len(set(given)) < len(given) or any(not name or name != name.strip() for name in given):
            raise ConfigError(
                f"data.labels.classes must be different texts without spaces around them, got {list(given)}; "
                "list each once."
            )


class PartyData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[data] of a party: a device has features, the server labels; a label holder with features has both."""

    features: FeatureSettings | None = None
    labels: LabelSettings | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PartyTable:
    """A device's records in the order of its file: ids, all different, and x, float32 [n, d]."""

    ids: list[str]
    x: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class LabelTable:
    """The server's records in the order of its file: ids, all different, and y [n].

    y: int64 place in the list of classes, or for a regression float32 in -1..1 (see `in_units`).
    clipped: how many labels lay outside the range of a regression; it depends on labels, so it stays at the server.
    """

    ids: list[str]
    y: NDArray[Any]
    clipped: int = 0


def parse(tree: Mapping[str, Any], folder: Path) -> PartyData:
    """A party's [data] section, checked; relative files are looked for in `folder`, which holds the party's TOML file.

    A column's `device` number is not needed and is ignored, since a party's file has one party's columns.
    """
    features = tree.get("features")
    if isinstance(features, Mapping) and isinstance(features.get("columns"), list):
        columns = [{**column, "device": 1} if isinstance(column, Mapping) else column for column in features["columns"]]
        tree = {**tree, "features": {**features, "columns": columns}}
    data = converted(tree, PartyData, below="data")
    found: dict[str, Any] = {}
    for name, part in (("features", data.features), ("labels", data.labels)):
        if part is not None:
            found[name] = msgspec.structs.replace(part, file=str(folder / part.file))
    if not found:
        raise ConfigError("a party's [data] has neither features nor labels; add [data.features] or [data.labels].")
    return PartyData(**found)


def read_features(settings: FeatureSettings) -> PartyTable:
    """Read a device's file and encode its features by their public settings.

    Formal guarantee: row i of x is a function of row i of the file and of `settings` alone, and its squared norm is
    at most the number of columns.
    """
    ids: list[str] = []
    parts = [np.zeros((0, width(settings.columns)), dtype=np.float32)]
    bad = np.zeros(len(settings.columns), dtype=np.int64)
    for block in blocks(settings.file, [settings.id, *(column.name for column in settings.columns)]):
        ids += _ids(settings.file, settings.id, block)
        encoded = [_encoded(block[column.name], column) for column in settings.columns]
        parts.append(np.hstack([x for x, _ in encoded]))
        bad += [count for _, count in encoded]
    _check_ids(settings.file, settings.id, ids)
    for column, count in zip(settings.columns, bad, strict=True):
        if count:
            wanted = "text or whole numbers" if _is_text(column) else "numbers"
            raise DataError(
                f"column '{column.name}' of {settings.file}, of kind '{column.kind}', must hold {wanted}, but {count} "
                f"of {len(ids)} values are neither that nor missing; correct the values or the column's kind."
            )
    return PartyTable(ids=ids, x=np.vstack(parts))


def read_labels(settings: LabelSettings) -> LabelTable:
    """Read the server's file; a label that is missing, no number, or not among the classes is refused, with counts."""
    ids: list[str] = []
    found: list[object] = []
    for block in blocks(settings.file, [settings.id, settings.label]):
        ids += _ids(settings.file, settings.id, block)
        found += block[settings.label]
    _check_ids(settings.file, settings.id, ids)
    where = f"column '{settings.label}' of {settings.file}"
    if settings.task == "regression":
        numbers = np.array([number_of(value) for value in found], dtype=np.float64)  # None becomes NaN
        if unknown := int(np.isnan(numbers).sum()):
            raise DataError(
                f"{where} must hold numbers, but {unknown} of {len(ids)} are missing or no numbers; correct them."
            )
        low, high = _range(settings)
        y = 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1
        return LabelTable(ids=ids, y=y.astype(np.float32), clipped=int(((numbers < low) | (numbers > high)).sum()))
    place = {name: number for number, name in enumerate(settings.classes or ())}
    codes = np.array([place.get(text_of(value) or "", -1) for value in found], dtype=np.int64)
    if (codes < 0).any():
        raise DataError(
            f"{where} must hold the {len(place)} values of data.labels.classes, but {int((codes < 0).sum())} of "
            f"{len(ids)} labels are missing or have another value; correct them or the list of classes."
        )
    return LabelTable(ids=ids, y=codes)


def in_units(settings: LabelSettings, outputs: NDArray[np.floating]) -> NDArray[np.float64]:
    """Numbers on the scale -1..1 of a regression's y, such as predictions, in the units of the label column."""
    low, high = _range(settings)
    return low + (outputs.astype(np.float64) + 1) / 2 * (high - low)


def _range(settings: LabelSettings) -> tuple[float, float]:
    if settings.low is None or settings.high is None:
        raise ConfigError(f"only a regression has a range, but task is '{settings.task}'; ask for no range.")
    return settings.low, settings.high


def _check_file(key: str, file: str) -> None:
    if not file.lower().endswith(ENDINGS):
        raise ConfigError(f"{key} must end in .csv, .csv.gz or .parquet, got '{file}'; convert or rename the file.")


def _ids(file: str, name: str, block: Block) -> list[str]:
    found = [text for value in block[name] if (text := text_of(value)) is not None]
    if len(found) < len(block[name]):
        raise DataError(
            f"the ids in column '{name}' of {file} must be text or whole numbers, got other values; convert them."
        )
    return found


def _check_ids(file: str, name: str, ids: list[str]) -> None:
    if not ids:
        raise DataError(f"{file} must have rows below the names of its columns, got none; check the file.")
    if empty := ids.count(""):
        raise DataError(
            f"every row of {file} needs an id in '{name}', but {empty} of {len(ids)} have none; remove them."
        )
    rows = Counter(ids)
    if len(rows) < len(ids):
        raise DataError(
            f"ids in column '{name}' of {file} must be different, but {len(ids) - len(rows)} of {len(ids)} rows repeat "
            f"an earlier one (one id stands in {max(rows.values())} rows); keep one row an id, by a rule that looks at "
            "these rows only."
        )


def _is_text(column: Column) -> bool:
    return column.kind == "category" and isinstance(column.values[0], str)


def _encoded(values: Sequence[object], column: Column) -> tuple[NDArray[np.float32], int]:
    """One column of a block, float32 [rows, width], and how many values could not be read."""
    import pandas as pd

    found = [text_of(value) if _is_text(column) else number_of(value) for value in values]
    if _is_text(column):
        series = pd.Series([present(str(word or ""), column.values) for word in found], dtype=object)
    else:
        series = pd.Series(found, dtype=np.float64)
    return encode(series.to_frame(column.name), [column]), found.count(None)
