"""Which party holds which columns, and how each column is scaled: by public numbers, or by numbers read off records."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpzv.data.columns import Column, encode
from dpzv.errors import ConfigError

__all__ = ["Parties", "PartyColumns", "Ranges", "text_as_places"]

Key = str | int
"""A column, by its name or by its position from 0."""

Parties = Mapping[str, Sequence[Key]]
Ranges = Mapping[Key, Sequence[Any]] | tuple[float, float]
"""Public (low, high) of columns, or the list of a column's public values; one pair of numbers is for all columns."""

GIVEN = "Given by the caller as public."
TIMES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")
"""What pandas calls columns of dates and times."""
LIKE_CONSTANT = 1e-9
"""A column whose deviation is below this share of its largest value does not vary beyond rounding."""


def text_as_places(X: Any, ranges: Ranges | None) -> Any:
    """A frame in which every text is replaced by its place among the column's public values; numbers stay.

    A value that is not listed gets the place after the last; a missing one stays missing.
    """
    if not isinstance(X, pd.DataFrame):
        return X
    names = [str(name) for name in X.columns]
    if len(set(names)) < len(names):
        raise ValueError(f"the columns of X must have different names, got {', '.join(names)}; rename some.")
    given = {_position(key, names): values for key, values in _mapping(ranges, names).items() if _are_texts(values)}
    out = X.copy(deep=False)
    for i, name in enumerate(X.columns):
        if pd.api.types.is_numeric_dtype(X[name]):
            continue
        texts = X[name].astype(object)
        if pd.api.types.infer_dtype(texts, skipna=True) in TIMES:
            raise ValueError(
                f"columns must hold numbers, or texts that `ranges` lists, got dates or times in '{name}'; turn them "
                f"into a number, such as the days since a public date: (X['{name}'] - "
                "pd.Timestamp('2000-01-01')).dt.days."
            )
        if i in given:
            found = pd.Index(given[i], dtype=object).get_indexer(pd.Index(texts, dtype=object))
            out[name] = np.where(texts.isna(), np.nan, np.where(found < 0, len(given[i]), found))
        elif pd.api.types.is_string_dtype(texts):
            raise ValueError(
                f"columns must hold numbers, or texts that `ranges` lists, got texts in '{name}'; add "
                f"ranges={{'{name}': [its public values]}}, or encode the column in a pipeline."
            )
    return out


class PartyColumns:
    """The columns of a frame by party. `read_off` names the columns that are scaled by numbers read off the records."""

    def __init__(self, names: Sequence[str], x: NDArray[Any], parties: Parties | None, ranges: Ranges | None) -> None:
        """`x` [records, columns] are the training records, and `names` the names of their columns."""
        self._names, held = list(names), _held(parties, names)
        self.parties = tuple(held)
        given = _mapping(ranges, names)
        positions = {key: _position(key, names) for key in given}
        unknown = [key for key, i in positions.items() if i is None]
        if unknown:
            raise ConfigError(f"ranges must be of columns of X, got {unknown[0]!r}; X has: {', '.join(names)}.")
        public = {i: _column(names[i], given[key]) for key, i in positions.items() if i is not None}
        self._public = [tuple(public[i] for i in mine if i in public) for mine in held.values()]
        self._rest = [[i for i in mine if i not in public] for mine in held.values()]
        self.read_off = [self._names[i] for mine in self._rest for i in mine]
        rest = x[:, [i for mine in self._rest for i in mine]]
        self._mean, deviation = rest.mean(axis=0), rest.std(axis=0)
        varies = deviation > LIKE_CONSTANT * np.abs(rest).max(axis=0, initial=0.0)
        self._scale = np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)

    def encoded(self, x: NDArray[Any]) -> list[NDArray[np.float32]]:
        """One array a party, float32 [records, its encoded columns]; values that are not listed are warned of."""
        frame, arrays, at = pd.DataFrame(x, columns=self._names), [], 0
        for public, rest in zip(self._public, self._rest, strict=True):
            part = slice(at, at := at + len(rest))
            scaled = (x[:, rest] - self._mean[part]) * self._scale[part]
            for column in public:
                _warn_of_unlisted(frame, column)
            arrays.append(np.concatenate([encode(frame, public), scaled.astype(np.float32)], axis=1))
        return arrays


def _mapping(ranges: Ranges | None, names: Sequence[Any]) -> dict[Key, Sequence[Any]]:
    """`ranges` as a mapping: a single pair is that of every column."""
    if ranges is None:
        return {}
    if isinstance(ranges, Mapping):
        return dict(ranges)
    return dict.fromkeys(range(len(names)), ranges)


def _are_texts(values: Any) -> bool:
    return not isinstance(values, str) and len(values) > 0 and all(isinstance(value, str) for value in values)


def _column(name: str, values: Sequence[Any]) -> Column:
    """The encoding of a column: two numbers are its range, anything else is the list of its values."""
    if _are_texts(values):
        places = tuple(range(len(values)))
        if len(set(values)) < len(values):
            raise ConfigError(f"the values of column '{name}' must differ, got one twice; list each once.")
        return Column(device=1, name=name, kind="category", source=GIVEN, values=places, other=True)
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        raise ConfigError(
            f"ranges of column '{name}' must be (low, high), or a list of values that are all text or all whole "
            f"numbers, got {values!r}; correct it."
        ) from None
    if len(numbers) == 2:
        return Column(device=1, name=name, kind="range", source=GIVEN, low=numbers[0], high=numbers[1])
    if not all(number.is_integer() for number in numbers):
        raise ConfigError(f"ranges of column '{name}' must be (low, high), got {len(numbers)} numbers; give two.")
    values = tuple(int(number) for number in numbers)
    return Column(device=1, name=name, kind="category", source=GIVEN, values=values, other=True)


def _position(key: Key, names: Sequence[str]) -> int | None:
    """Where a column is, or None if there is no such column."""
    if isinstance(key, str):
        return names.index(key) if key in names else None
    return int(key) if isinstance(key, int | np.integer) and 0 <= key < len(names) else None


def _held(parties: Parties | None, names: Sequence[str]) -> dict[str, list[int]]:
    """The positions of each party's columns; every column must have one holder."""
    if parties is None:
        return {"party": list(range(len(names)))}
    held: dict[str, list[int]] = {}
    owner: dict[int, str] = {}
    for party, keys in parties.items():
        held[str(party)] = []
        for key in [keys] if isinstance(keys, str | int) else keys:
            i = _position(key, names)
            if i is None or i in owner:
                reason = "which is not in X" if i is None else f"which '{owner[i]}' holds already"
                raise ConfigError(f"parties must share out the columns of X, got {key!r} for '{party}', {reason}.")
            owner[i] = str(party)
            held[str(party)].append(i)
    left = [name for i, name in enumerate(names) if i not in owner]
    empty = [party for party, mine in held.items() if not mine]
    if left or empty:
        what = f"nobody for {', '.join(map(repr, left))}" if left else f"no column for '{empty[0]}'"
        raise ConfigError(f"every column must have a holder and every party a column, got {what}; correct `parties`.")
    return held


def _warn_of_unlisted(frame: pd.DataFrame, column: Column) -> None:
    if column.kind != "category":
        return
    unlisted = ~frame[column.name].isin(column.values)
    if unlisted.any():
        warnings.warn(
            f"{int(unlisted.sum())} of {len(frame)} values of column '{column.name}' are not among those that `ranges` "
            "lists, so they count as one further value; check spelling and capitals.",
            stacklevel=2,
        )
