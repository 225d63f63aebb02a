"""What is odd about the values of a party's columns, with the first lines that hold odd values.

All of it tells something about records. It is for the party that has them, and for nobody else.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpzv.data.columns import Column

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ColumnTally", "Found", "in_lines"]

_LINES, _WORDS, _MOST_WORDS = 3, 5, 1000


def in_lines(lines: Sequence[int]) -> str:
    """``the first in line 7`` or ``the first in lines 7, 9 and 12``."""
    first = [str(line) for line in lines[:_LINES]]
    if len(first) < 2:
        return f"the first in line {first[0]}"
    return f"the first in lines {', '.join(first[:-1])} and {first[-1]}"


@dataclass(slots=True)
class Found:
    """How many values are odd in one way, and the lines of the first of them."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def take(self, odd: NDArray[np.bool_], lines: Sequence[int]) -> None:
        """Count the rows of a block that are `odd`."""
        at = np.flatnonzero(odd)
        self.count += len(at)
        self.lines += [lines[i] for i in at[: _LINES - len(self.lines)]]

    def of(self, rows: int) -> str:
        """``3 of 10 values, the first in line 7,``."""
        return f"{self.count} of {rows} values, {in_lines(self.lines)},"


@dataclass(slots=True, eq=False)
class ColumnTally:
    """The odd values of one column of a file."""

    column: Column
    rows: int = 0
    unreadable: Found = field(default_factory=Found)
    missing: Found = field(default_factory=Found)
    clipped: Found = field(default_factory=Found)
    unlisted: Found = field(default_factory=Found)
    words: Counter[str] = field(default_factory=Counter)
    """How often each value that is not listed occurs, for the first thousand of them."""
    constant: bool = True
    _first: NDArray[np.float32] | None = None

    def take(self, series: pd.Series, block: NDArray[np.float32], lines: Sequence[int]) -> None:
        """Count the values of a block of rows, which were encoded as `block` [rows, width]."""
        column, absent = self.column, series.isna().to_numpy(dtype=bool)
        self.rows += len(series)
        self.missing.take(absent, lines)
        if column.kind == "category":  # a listed value has a 1 at its place
            unlisted = ~absent & ~block[:, : len(column.values)].any(axis=1)
            self.unlisted.take(unlisted, lines)
            self._remember(series[unlisted])
        elif column.kind != "flag":
            low, high = column.limits
            value = series.to_numpy(dtype=np.float64)
            self.clipped.take(~absent & ((value < low) | (value > high)), lines)
        if self._first is None and len(block):
            self._first = block[0].copy()
        self.constant = self.constant and bool((block == self._first).all())

    def notes(self) -> list[str]:
        """What is odd, in sentences that name the column and count its values."""
        column, name, found = self.column, f"column '{self.column.name}'", []
        if self.unlisted.count:
            become = "go into the column for other values" if column.other else "become zeros"
            found.append(f"{name}: {self.unlisted.of(self.rows)} are not listed and {become}{self._examples()}.")
        if self.clipped.count:
            low, high = column.limits
            found.append(f"{name}: {self.clipped.of(self.rows)} lie outside {low:g} to {high:g} and are clipped to it.")
        if self.missing.count:
            told = "their own column says so" if column.missing else "no column says so (`missing = true` adds one)"
            found.append(f"{name}: {self.missing.of(self.rows)} are missing; {told}.")
        if self.constant and self.rows > 1:
            found.append(f"{name}: all {self.rows} rows are encoded alike, so it tells nothing.")
        return found

    def warning(self) -> str:
        """One sentence for the party's own log if values that are not listed were turned into zeros; else empty."""
        if self.column.other or not self.unlisted.count:
            return ""
        return (
            f"column '{self.column.name}': {self.unlisted.of(self.rows)} are not listed and become zeros; `dpzv check` "
            "shows which. This count is about records: it is for this party alone."
        )

    def _remember(self, unlisted: Iterable[object]) -> None:
        for value in unlisted:
            word = value if isinstance(value, str) else f"{value:g}"
            if word in self.words or len(self.words) < _MOST_WORDS:
                self.words[word] += 1

    def _examples(self) -> str:
        """The most frequent values that are not listed, each with a listed one that it may stand for."""
        listed, shown = [str(value) for value in self.column.values], []
        for word, count in self.words.most_common(_WORDS):
            like = [other for other in listed if other.casefold() == word.casefold()]
            like = like or difflib.get_close_matches(word, listed, n=1, cutoff=0.7)
            shown.append(f"'{word}' ({count}{f', perhaps {like[0]!r}' if like else ''})")
        return f": {', '.join(shown)}{' and others' if len(self.words) > _WORDS else ''}"
