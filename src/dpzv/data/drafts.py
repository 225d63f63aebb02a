"""A draft of a party's [data] section from its file, for a person who then replaces what was read off records.

A draft is for the party alone: its ranges and lists are values of records. Its sources are left empty, so that no run
takes it as it is.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from dpzv.data.oddities import in_lines
from dpzv.data.party_records import separated
from dpzv.data.rows import RowBlock, blocks, number_of, present, text_of
from dpzv.errors import DataError
from dpzv.validate import one_of

__all__ = ["draft"]

MOST_VALUES = 50
"""A column with more different texts is no category."""
FEW_NUMBERS = 12
"""Labels with at most so many different numbers are classes."""
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+")
DATES = "looks like dates; write what matters of them as numbers, such as the month or the days since a public date"
WARNING = """\
# Drafted from records. Numbers and values that are read off records are not public, and no epsilon covers them: a range
# that ends at your largest value publishes that value, and a category that exists because one person has it publishes
# that person. Take every number and list below from documentation, a standard or a contract instead, and name it in
# `source`: a column without a source is refused. Until then this draft is for you alone."""


@dataclass(slots=True)
class _Seen:
    """What a column holds: its present values as texts (a few) and as numbers, and the first lines of other values."""

    name: str
    words: dict[str, None] = field(default_factory=dict)
    numbers: list[float] = field(default_factory=list)
    missing: int = 0
    rows: int = 0
    texts: list[int] = field(default_factory=list)

    def take(self, value: object, line: int) -> None:
        """Look at one value."""
        self.rows += 1
        word = text_of(value)
        word = str(value) if word is None else word
        if present(word, ()) is None:
            self.missing += 1
            return
        if len(self.words) <= MOST_VALUES:
            self.words[word] = None
        number = number_of(value)
        if number is None or not math.isfinite(number):
            self.texts.append(line)
        else:
            self.numbers.append(number)

    @property
    def numeric(self) -> bool:
        """Whether every value that is there is a number."""
        return bool(self.numbers) and not self.texts


@dataclass(slots=True)
class _Ids:
    """The ids of a file that a run would refuse: the lines in which one is missing, or repeats an earlier one."""

    column: str
    known: set[str] = field(default_factory=set)
    missing: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    def take(self, block: RowBlock) -> None:
        """Look at the ids of some rows."""
        for value, line in zip(block.values.get(self.column, ()), block.lines, strict=False):
            word = text_of(value) or ""
            if not word:
                self.missing.append(line)
            elif word in self.known:
                self.repeated.append(line)
            self.known.add(word)

    def told(self) -> str:
        """A sentence if a run would refuse some of the ids; else empty."""
        found = []
        if self.repeated:
            found.append(f"{len(self.repeated)} rows repeat an id of an earlier row ({in_lines(self.repeated)})")
        if self.missing:
            found.append(f"{len(self.missing)} rows have no id ({in_lines(self.missing)})")
        if not found:
            return ""
        return (
            f"{' and '.join(found)}, which a run refuses; keep one row an id, by a rule that looks at these rows only."
        )


def draft(file: str, id_column: str = "", label: str = "") -> str:
    """The [data] section that the values of `file` suggest, as TOML; ids and labels are what the caller says."""
    ids = _Ids(id_column)
    seen = _seen(file, ids)
    if not seen:
        raise DataError(f"{file} must have rows below the names of its columns, got none; check the file.")
    for name in filter(None, (id_column, label)):
        one_of(f"the column of {file}", name, seen)
    lines = [WARNING, *(f"# {sentence}" for sentence in (separated(file), ids.told()) if sentence)]
    where = [f"file = {_toml(file)}", f"id = {_toml(id_column)}{'' if id_column else '  # name the column of ids'}"]
    if label:
        lines += ["", "[data.labels]", *where, f"label = {_toml(label)}", *_label(seen[label])]
    columns = [line for name, column in seen.items() if name not in (id_column, label) for line in _column(column)]
    if any(not line.startswith("#") for line in columns):
        lines += ["", "[data.features]", *where]
    return "\n".join([*lines, *columns]) + "\n"


def _seen(file: str, ids: _Ids) -> dict[str, _Seen]:
    found: dict[str, _Seen] = {}
    for block in blocks(file):
        ids.take(block)
        for name, values in block.values.items():
            column = found.setdefault(name, _Seen(name))
            for value, line in zip(values, block.lines, strict=True):
                column.take(value, line)
    return found


def _column(seen: _Seen) -> list[str]:
    """The lines of one column: its settings, or a comment that says why it is left out."""
    what = _kind(seen)
    if isinstance(what, str):
        return ["", f"# {_toml(seen.name)} is left out: {what}."]
    notes, settings = what
    lines = [f"{key} = {_toml(value)}" for key, value in settings.items()]
    missing = ["missing = true"] if seen.missing else []
    told = [f"# {note}" for note in notes]
    return ["", "[[data.features.columns]]", f"name = {_toml(seen.name)}", *told, *lines, *missing, 'source = ""']


def _kind(seen: _Seen) -> tuple[list[str], dict[str, Any]] | str:
    """Notes and settings for a column; a text says why it has none."""
    if not seen.words:
        return "it has no value"
    if len(seen.words) == 1 and not seen.missing:
        return "it is the same in every row"
    if _are(COMMA, seen):
        return "its numbers have a decimal comma; write decimals with a point"
    if not seen.numeric and len(seen.words) > MOST_VALUES and _are(DATE, seen):
        return f"it {DATES}"
    if not seen.numeric and len(seen.words) > MOST_VALUES:
        some = f", {len(seen.texts)} of which are no numbers ({in_lines(seen.texts)})" if seen.numbers else ""
        return f"it has more than {MOST_VALUES} different values{some}, so it is no category, and it is no number"
    if not seen.numeric:
        notes = [f"This {DATES}."] if _are(DATE, seen) else []
        return notes, {"kind": "category", "values": sorted(seen.words)}
    numbers = np.asarray(seen.numbers)
    if set(seen.numbers) <= {0.0, 1.0}:
        return [], {"kind": "flag"}
    whole, notes = bool((numbers == np.round(numbers)).all()), list[str]()
    if whole and len(set(seen.numbers)) == seen.rows > FEW_NUMBERS:
        notes.append("Every row has a different whole number here; if these are ids, remove this column.")
    elif whole and len(seen.words) <= FEW_NUMBERS:
        codes = [int(number) for number in sorted(set(seen.numbers))]
        notes.append(
            f'If these are codes and not amounts: kind = "category", values = {_toml(codes)}, without low and high.'
        )
    if len(knots := _knots(seen.numbers)) > 2:
        return [*notes, "Most values are far below the largest, so knots follow them better than a range."], {
            "kind": "knots",
            "knots": knots,
        }
    low, high = _around(float(numbers.min()), float(numbers.max()))
    return notes, {"kind": "range", "low": low, "high": high}


def _are(pattern: re.Pattern[str], seen: _Seen) -> bool:
    """Whether all kept values that are no numbers match the `pattern`."""
    texts = [word for word in seen.words if number_of(word) is None]
    return bool(texts) and all(pattern.fullmatch(word) for word in texts)


def _label(seen: _Seen) -> list[str]:
    lacking = [f"# {seen.missing} labels are missing, which a run refuses."] if seen.missing else []
    return lacking + _label_settings(seen)


def _label_settings(seen: _Seen) -> list[str]:
    if seen.numeric and len(seen.words) > FEW_NUMBERS:
        low, high = _around(min(seen.numbers), max(seen.numbers))
        return ['task = "regression"', f"low = {_toml(low)}", f"high = {_toml(high)}"]
    task = "binary" if len(seen.words) == 2 else "classes"
    notes = ["# More values than a list of classes should have."] if len(seen.words) > MOST_VALUES else []
    if task == "binary":
        notes.append(
            "# What is predicted is the probability of the second class; put that last which you want to find."
        )
    if _are(COMMA, seen):
        notes.append("# These numbers have a decimal comma; write decimals with a point.")
    return [*notes, f"task = {_toml(task)}", f"classes = {_toml(sorted(seen.words))}"]


def _knots(numbers: list[float]) -> list[float]:
    """Round numbers near some quantiles if the values are far from evenly spread, else none."""
    at = np.quantile(numbers, (0, 0.25, 0.5, 0.75, 0.9, 1))
    if at[-1] - at[0] < 3 * (at[-2] - at[0]):
        return []
    low, high = _around(float(at[0]), float(at[-1]))
    inner = [_around(0.0, float(number))[1] if number > 0 else float(number) for number in at[1:-1]]
    found = sorted({low, *(number for number in inner if low < number < high), high})
    return found if all(a < b for a, b in pairwise(found)) else []


def _around(low: float, high: float) -> tuple[float, float]:
    """Round numbers below `low` and above `high`, in steps of 1, 2 or 5 times a power of ten."""
    if low == high:
        high = low + max(abs(low), 1.0)
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= (high - low) / 10)
    digits = max(0, -math.floor(math.log10(step)))
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)


def _toml(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return msgspec.toml.encode({"x": value}).decode().strip().removeprefix("x = ")
