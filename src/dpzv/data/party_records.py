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
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.columns import Column, encode, width
from dpzv.data.oddities import ColumnTally, Found, in_lines
from dpzv.data.rows import ENDINGS, RowBlock, blocks, number_of, present, separator_of, text_of
from dpzv.data.texts import Texts
from dpzv.errors import ConfigError, DataError
from dpzv.terms import Task
from dpzv.validate import converted, utf8

__all__ = [
    "FeatureSettings",
    "LabelSettings",
    "PartyData",
    "in_units",
    "parse",
    "read_features",
    "read_ids",
    "read_labels",
    "separated",
]


class FeatureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[data.features]: a device's file, its id column, and how its feature columns are encoded."""

    file: str
    id: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        _check_file("data.features", self.file, self.id)
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
        _check_file("data.labels", self.file, self.id)
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

    @property
    def unit(self) -> float:
        """What a 1 in `LabelTable.y` stands for in the label column: half the range of a regression."""
        return 1.0 if self.low is None or self.high is None else (self.high - self.low) / 2


class PartyData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[data] of a party: a device has features, the server labels; a label holder with features has both."""

    features: FeatureSettings | None = None
    labels: LabelSettings | None = None

    def of_device(self) -> FeatureSettings:
        """What a device must have."""
        if self.features is None:
            raise ConfigError("a device needs features, got none; add [data.features] to its file.")
        return self.features

    def of_server(self) -> LabelSettings:
        """What the server must have."""
        if self.labels is None:
            raise ConfigError("the server needs labels, got none; add [data.labels] to its file.")
        return self.labels


@dataclass(frozen=True, slots=True, eq=False)
class PartyTable:
    """A device's records in the order of its file: ids, all different, and x, float32 [n, d].

    tallies: what is odd about each column; it is about records, so it stays with the party. separated: a sentence if
    the file's values are not separated by commas.
    """

    ids: Texts
    x: NDArray[np.float32]
    tallies: tuple[ColumnTally, ...] = ()
    separated: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LabelTable:
    """The server's records in the order of its file: ids, all different, and y [n].

    y: int64 place in the list of classes, or for a regression float32 in -1..1 (see `in_units`).
    clipped: how many labels lay outside the range of a regression; it depends on labels, so it stays at the server.
    separated: a sentence if the file's values are not separated by commas.
    """

    ids: Texts
    y: NDArray[Any]
    clipped: int = 0
    separated: str = ""

    def warning(self) -> str:
        """A sentence for the server's own log if labels were clipped; else empty."""
        if not self.clipped:
            return ""
        return f"{self.clipped} of {len(self.ids)} labels lie outside data.labels.low to high and are clipped to it."


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
    ids, lines, numbers = Texts(), array("q"), bytearray()  # a list of blocks would have to be joined by a copy
    tallies = tuple(map(ColumnTally, settings.columns))
    names = [settings.id, *(column.name for column in settings.columns)]
    for block in blocks(settings.file, names):
        ids.extend(_ids(settings.file, settings.id, block))
        lines.extend(block.lines)
        numbers += np.hstack([_encoded(block, tally) for tally in tallies]).tobytes()
    _check_ids(settings.file, settings.id, ids, lines)
    between = separated(settings.file, names)
    for tally in tallies:
        column, bad = tally.column, tally.unreadable
        if bad.count:
            wanted = "text or whole numbers" if _is_text(column) else "numbers"
            raise DataError(
                f"column '{column.name}' of {settings.file}, of kind '{column.kind}', must hold {wanted}, but "
                f"{bad.count} of {len(ids)} values are something else ({in_lines(bad.lines)}); correct the "
                f"values or the column's kind{', and write decimals with a point' if between else ''}."
            )
    x = np.frombuffer(numbers, np.float32).reshape(-1, width(settings.columns))
    return PartyTable(ids=ids, x=x, tallies=tallies, separated=between)


def read_labels(settings: LabelSettings) -> LabelTable:
    """Read the server's file; a label that is missing, no number, or not among the classes is refused, with counts."""
    ids, lines, numbered = Texts(), array("q"), array("d")
    place = {name: number for number, name in enumerate(settings.classes or ())}
    for block in blocks(settings.file, [settings.id, settings.label]):
        ids.extend(_ids(settings.file, settings.id, block))
        given = block.values[settings.label]
        if settings.task == "regression":
            numbered.extend(math.nan if (number := number_of(value)) is None else number for value in given)
        else:
            numbered.extend(place.get(text_of(value) or "", -1) for value in given)
        lines.extend(block.lines)
    _check_ids(settings.file, settings.id, ids, lines)
    between = separated(settings.file, [settings.id, settings.label])
    where, bad, numbers = f"column '{settings.label}' of {settings.file}", Found(), np.frombuffer(numbered)
    if settings.task == "regression":
        bad.take(np.isnan(numbers), lines)
        if bad.count:
            raise DataError(
                f"{where} must hold numbers, but {bad.count} of {len(ids)} are missing or no numbers "
                f"({in_lines(bad.lines)}); correct them{', and write decimals with a point' if between else ''}."
            )
        low, high = _range(settings)
        y = 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1
        clipped = int(((numbers < low) | (numbers > high)).sum())
        return LabelTable(ids=ids, y=y.astype(np.float32), clipped=clipped, separated=between)
    codes = numbers.astype(np.int64)
    bad.take(codes < 0, lines)
    if bad.count:
        raise DataError(
            f"{where} must hold the {len(place)} values of data.labels.classes, but {bad.count} of {len(ids)} labels "
            f"are missing or have another value ({in_lines(bad.lines)}); correct them or the list of classes."
        )
    return LabelTable(ids=ids, y=codes, separated=between)


def read_ids(path: Path) -> Texts:
    """The record ids of a text file with one a line."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a text file with one record id a line.")
    found = Texts()
    with path.open("rb") as file:
        for line in file:
            found.extend(text for part in utf8(line, str(path)).splitlines() if (text := part.strip()))
    return found


def in_units(settings: LabelSettings, outputs: NDArray[np.floating]) -> NDArray[np.float64]:
    """Numbers on the scale -1..1 of a regression's y, such as predictions, in the units of the label column."""
    low, high = _range(settings)
    return low + (outputs.astype(np.float64) + 1) / 2 * (high - low)


def _range(settings: LabelSettings) -> tuple[float, float]:
    if settings.low is None or settings.high is None:
        raise ConfigError(f"only a regression has a range, but task is '{settings.task}'; ask for no range.")
    return settings.low, settings.high


def _check_file(section: str, file: str, name: str) -> None:
    if not name:
        raise ConfigError(f"{section}.id must name the column of ids, got ''; name it.")
    if not file.lower().endswith(ENDINGS):
        raise ConfigError(
            f"{section}.file must end in .csv, .csv.gz or .parquet, got '{file}'; convert or rename the file."
        )


def separated(file: str, names: Sequence[str] = ()) -> str:
    """A sentence that says what separates the values of a CSV file, if it is not a comma; else empty."""
    separator = "," if file.lower().endswith(".parquet") else separator_of(file, names)
    if separator == ",":
        return ""
    shown = "tabs" if separator == "\t" else f"'{separator}'"
    return f"{file} is read as values separated by {shown}, since they separate the names in its first line."


def _ids(file: str, name: str, block: RowBlock) -> list[str]:
    found = [text for value in block.values[name] if (text := text_of(value)) is not None]
    if len(found) < len(block.lines):
        raise DataError(
            f"the ids in column '{name}' of {file} must be text or whole numbers, got other values; convert them."
        )
    return found


def _check_ids(file: str, name: str, ids: Texts, lines: Sequence[int]) -> None:
    if not ids:
        raise DataError(f"{file} must have rows below the names of its columns, got none; check the file.")
    if empty := ids.count(""):
        raise DataError(
            f"every row of {file} needs an id in '{name}', but {empty} of {len(ids)} have none, the first in line "
            f"{lines[ids.index('')]}; remove them."
        )
    if ids.may_repeat() and len(rows := Counter(ids)) < len(ids):
        first = {text: line for line, text in zip(reversed(lines), reversed(ids), strict=True)}
        again = next(line for line, text in zip(lines, ids, strict=True) if first[text] != line)
        raise DataError(
            f"ids in column '{name}' of {file} must be different, but {len(ids) - len(rows)} of {len(ids)} rows repeat "
            f"an earlier one, the first in line {again} (one id stands in {max(rows.values())} rows); keep one row an "
            "id, by a rule that looks at these rows only."
        )


def _is_text(column: Column) -> bool:
    return column.kind == "category" and isinstance(column.values[0], str)


def _encoded(block: RowBlock, tally: ColumnTally) -> NDArray[np.float32]:
    """One column of a block, float32 [rows, width]; what is odd about its values is counted."""
    import pandas as pd

    column, values = tally.column, block.values[tally.column.name]
    found = [text_of(value) if _is_text(column) else number_of(value) for value in values]
    if None in found:
        tally.unreadable.take(np.array([value is None for value in found]), block.lines)
    if _is_text(column):
        series = pd.Series([present(str(word or ""), column.values) for word in found], dtype=object)
    else:
        series = pd.Series(found, dtype=np.float64)
    encoded = encode(series.to_frame(column.name), [column])
    tally.take(series, encoded, block.lines)
    return encoded
