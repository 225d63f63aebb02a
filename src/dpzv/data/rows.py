"""Values of a party's CSV or Parquet file, some rows at a time; no value's type is guessed from other rows."""

from __future__ import annotations

import csv
import gzip
import importlib
import math
import os
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path

from dpzv.data.files import explained
from dpzv.errors import ConfigError, DataError
from dpzv.validate import nearest

__all__ = ["ENDINGS", "Block", "blocks", "number_of", "present", "text_of"]

Block = Mapping[str, Sequence[object]]
"""Some consecutive rows of a file, by column."""

ENDINGS = (".csv", ".csv.gz", ".parquet")
_BLOCK_ROWS = 16_384  # rows held as Python values at a time
_MISSING = frozenset({"", "na", "n/a", "nan", "none", "null", "<na>", "#n/a"})
_TRUTH = {"true": 1.0, "false": 0.0}


def blocks(file: str, names: Sequence[str]) -> Iterator[Block]:
    """The named columns of a file, some rows at a time."""
    path = Path(file)
    if not os.path.isfile(path):
        raise DataError(f"{file} should be a party's data file, but it does not exist; check `file` in [data].")
    return _parquet(path, names) if file.lower().endswith(".parquet") else _csv(path, names)


def text_of(value: object) -> str | None:
    """A value as text: '' if it is missing, None if it is neither text nor a whole number."""
    if isinstance(value, str):
        return value.strip()
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else None


def number_of(value: object) -> float | None:
    """A value as a number: NaN if it is missing, None if it is not a number."""
    if isinstance(value, str):
        word = value.strip()
        try:
            return float(word)
        except ValueError:
            return math.nan if word.lower() in _MISSING else _TRUTH.get(word.lower())
    if value is None:
        return math.nan
    return float(value) if isinstance(value, int | float | Decimal) else None


def present(word: str, listed: Collection[object]) -> str | None:
    """None for a word that means missing, unless it is listed as a value; else the word."""
    return None if word.lower() in _MISSING and word not in listed else word


def _csv(path: Path, names: Sequence[str]) -> Iterator[Block]:
    uneven = 0
    try:
        opened = gzip.open if path.name.lower().endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            at = _places(path, header, names)
            while rows := list(islice(reader, _BLOCK_ROWS)):
                whole = [row for row in rows if len(row) == len(header)]
                uneven += sum(len(row) not in (0, len(header)) for row in rows)  # 0: an empty line
                yield {name: [row[i] for row in whole] for name, i in at.items()}
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise DataError(f"{path} should be a CSV file in UTF-8, but reading it failed ({error}); check it.") from error
    if uneven:
        raise DataError(
            f"every row of {path} must have the {len(header)} columns of its first line, but {uneven} have more or "
            "fewer; quote values that hold commas."
        )


def _parquet(path: Path, names: Sequence[str]) -> Iterator[Block]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{path} needs the Python package pyarrow, which is not installed; run `pip install pyarrow`."
        ) from error
    expected, kinds = f"{path} should be a Parquet file, but reading it", (OSError, ValueError, NotImplementedError)
    with explained(expected, "check it.", *kinds), parquet.ParquetFile(path) as table:
        at = _places(path, table.schema_arrow.names, names)
        for batch in table.iter_batches(batch_size=_BLOCK_ROWS, columns=list(at)):
            yield {name: batch.column(name).to_pylist() for name in at}


def _places(path: Path, header: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """The places of the named columns. If none is there, the first line may be a record, so no error shows it."""
    if not set(names) & set(header):
        raise ConfigError(
            f"the first line of {path} must name its columns, but none of the {len(header)} there is one of the "
            f"{len(set(names))} asked for; check the file and the party's [data] section."
        )
    for name in names:
        if name not in header:
            raise ConfigError(f"{path} has no column '{name}'; {nearest(name, header)}")
        if header.count(name) > 1:
            raise ConfigError(f"{path} has {header.count(name)} columns called '{name}'; rename all but one.")
    return {name: header.index(name) for name in names}
