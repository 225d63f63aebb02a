"""Public encoding of tabular columns: ranges, knots and categories come from the recipe, never from records.

Under `records` nothing may be read off the data before training, so every column says where its constants
come from (`source`). Each raw column becomes a block of float32 columns whose squared norm is at most 1 in every
row, so a row's squared norm is at most the number of raw columns, whatever the records are.

    kind       a present value becomes                                  a missing value becomes
    range      low..high scaled to -1..1, clipped                       0
    knots      weights on its two neighbouring knots (they add to 1)    zeros
    category   1 at its place in `values`; a value not listed: zeros,   zeros
               or 1 in one more column when `other` is true
    flag       0 for zero or false, else 1                              0

`missing = true` appends one more column that is 1 where the value is missing. A linear map of a `knots` block
is a piecewise linear function of the value, clipped to the outer knots.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.errors import ConfigError
from dpzv.validate import nearest, whole

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Column", "Part", "encode", "of_device", "parts", "width"]

_FIELDS = {"range": {"low", "high"}, "knots": {"knots"}, "category": {"values", "other"}, "flag": set[str]()}


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One raw column of one device (numbered from 1) and how it is encoded; see the module's table."""

    device: int
    name: str
    kind: Literal["range", "knots", "category", "flag"]
    source: str
    low: float | None = None
    high: float | None = None
    knots: tuple[float, ...] = ()
    values: tuple[int | str, ...] = ()
    other: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        where = f"data column '{self.name}'"
        whole(f"the device of {where}", self.device, 1)
        if not self.source.strip():
            raise ConfigError(f"{where} needs a source sentence, got none; say where its constants are published.")
        for field in ("low", "high", "knots", "values", "other"):
            value = getattr(self, field)
            given = value is not None and value is not False and value != ()  # a low of 0 is given
            if given and field not in _FIELDS[self.kind]:
                raise ConfigError(f"{where} of kind '{self.kind}' takes no '{field}', got {value}; remove it.")
        if self.kind == "range" and not _increasing((self.low, self.high)):
            raise ConfigError(f"{where} needs finite low < high, got {self.low} and {self.high}; set both.")
        if self.kind == "knots" and not (len(self.knots) > 1 and _increasing(self.knots)):
            raise ConfigError(f"{where} needs two or more increasing knots, got {list(self.knots)}; sort them.")
        if self.kind == "category":
            kinds = {type(value) for value in self.values}
            if len(kinds) != 1 or len(set(self.values)) != len(self.values):
                raise ConfigError(
                    f"{where} needs a list of different values, all text or all whole numbers, "
                    f"got {list(self.values)}; list them once each."
                )

    @property
    def limits(self) -> tuple[float, float]:
        """Where the values of a range, or of knots, are clipped."""
        low, *_, high = self.knots or (self.low or 0.0, self.high or 0.0)
        return float(low), float(high)


def _increasing(values: Sequence[float | None]) -> bool:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return len(numbers) == len(values) and all(a < b for a, b in itertools.pairwise(numbers))


def of_device(columns: Sequence[Column], m: int) -> tuple[Column, ...]:
    """The columns of device `m` (from 1), in the order given."""
    return tuple(column for column in columns if column.device == m)


def width(columns: Sequence[Column]) -> int:
    """How many encoded columns `encode` makes of these."""
    one = [column.kind in ("range", "flag") for column in columns]
    return sum(one) + sum(len(c.knots) + len(c.values) + c.other + c.missing for c in columns)


class Part(msgspec.Struct, frozen=True):
    """What one encoded column is: `slope * value + shift` of the raw value, or 1 if what `what` says holds and else 0.

    name: the raw column. what: which part of it, in words. span: the largest minus the least value it can have.
    """

    name: str
    what: str
    slope: float = 1.0
    shift: float = 0.0
    span: float = 1.0


def parts(columns: Sequence[Column]) -> list[Part]:
    """The encoded columns that `encode` makes of these, in their order."""
    found = []
    for column in columns:
        if column.kind == "range":
            low, high = column.limits
            slope = 2 / (high - low)
            found.append(Part(column.name, f"a unit, {low:g} to {high:g}", slope, -slope * low - 1, 2.0))
        elif column.kind == "flag":
            found.append(Part(column.name, "yes"))
        found += [Part(column.name, f"at {knot:g}") for knot in column.knots]
        found += [Part(column.name, f"is {value}") for value in column.values]
        found += [Part(column.name, "is another value")] * column.other
        found += [Part(column.name, "is missing")] * column.missing
    return found


def encode(frame: pd.DataFrame, columns: Sequence[Column]) -> NDArray[np.float32]:
    """Encode the named columns of `frame` [D rows], float32 [D, width(columns)].

    Formal guarantee: row i is a function of row i of the frame and of `columns` alone, and its squared norm
    is at most `len(columns)`.
    """
    out = np.zeros((len(frame), width(columns)), dtype=np.float32)
    at = 0
    for column in columns:
        if column.name not in frame.columns:
            known = [str(name) for name in frame.columns]
            raise ConfigError(
                f"data column '{column.name}' is not among those of device {column.device}; "
                f"{nearest(column.name, known)}"
            )
        block = out[:, at : at + width([column])]
        absent = frame[column.name].isna().to_numpy(dtype=bool)
        if column.kind == "category":
            _category(block, frame[column.name], column, absent)
        else:
            _number(block, frame[column.name], column, absent)
        if column.missing:
            block[:, -1] = absent
        at += block.shape[1]
    return out


def _number(block: NDArray[np.float32], series: pd.Series, column: Column, absent: NDArray[np.bool_]) -> None:
    if series.dtype.kind not in "fiub":
        raise ConfigError(
            f"data column '{column.name}' of kind '{column.kind}' must hold numbers, got {series.dtype}; "
            "use kind 'category' for text."
        )
    value = series.to_numpy(dtype=np.float64)
    if column.kind == "flag":
        block[:, 0] = (value != 0) & ~absent
    elif column.kind == "range":
        low, high = column.limits
        block[:, 0] = np.where(absent, 0.0, 2 * (np.clip(value, low, high) - low) / (high - low) - 1)
    else:
        knots = np.asarray(column.knots, dtype=np.float64)
        rows = np.flatnonzero(~absent)
        inside = np.clip(value[rows], *column.limits)
        left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
        share = (inside - knots[left]) / (knots[left + 1] - knots[left])
        block[rows, left] = 1 - share
        block[rows, left + 1] = share


def _category(block: NDArray[np.float32], series: pd.Series, column: Column, absent: NDArray[np.bool_]) -> None:
    import pandas as pd

    numeric = series.dtype.kind in "fiub"
    if numeric != isinstance(column.values[0], int):
        raise ConfigError(
            f"data column '{column.name}' holds {'numbers' if numeric else 'text'}, but its category values "
            f"are such as {column.values[0]!r}; write numbers for numbers and text for text."
        )
    codes = pd.Index(column.values).get_indexer(pd.Index(series))
    codes[absent] = -1
    rows = np.flatnonzero(codes >= 0)
    block[rows, codes[rows]] = 1
    if column.other:
        block[(codes < 0) & ~absent, len(column.values)] = 1
