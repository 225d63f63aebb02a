"""Values of a party's CSV or Parquet file, some rows at a time; no value's type is guessed from other rows."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import math
import os
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from dpzv.data.files import explained
from dpzv.errors import ConfigError, DataError
from dpzv.validate import UTF16, nearest

__all__ = ["ENDINGS", "RowBlock", "blocks", "number_of", "present", "separator_of", "sha256_of", "text_of"]


class RowBlock(NamedTuple):
    """Some consecutive rows of a file: their values by column, and the line in which each begins (Parquet: its row)."""

    values: Mapping[str, Sequence[object]]
    lines: Sequence[int]


ENDINGS = (".csv", ".csv.gz", ".parquet")
SEPARATORS = (",", ";", "\t", "|")
_ENCODING = "utf-8-sig"  # a mark before the text is no part of the first name
_BLOCK_ROWS = 16_384  # rows held as Python values at a time
_MISSING = frozenset({"", "na", "n/a", "nan", "none", "null", "<na>", "#n/a"})
_TRUTH = {"true": 1.0, "false": 0.0}


def blocks(file: str, names: Sequence[str] = ()) -> Iterator[RowBlock]:
    """The named columns of a file, or all if none is named, some rows at a time."""
    path = _existing(file)
    return _parquet(path, names) if file.lower().endswith(".parquet") else _csv(path, names)


def separator_of(file: str, names: Sequence[str] = ()) -> str:
    """The separator of a CSV file: the one with which its first line has most of the `names`, or most columns.

    It is a comma if no other is better. No row below the first line counts.
    """
    path, found = _existing(file), dict[str, int]()
    with _opened(path) as stream:
        for separator in SEPARATORS:
            stream.seek(0)
            found[separator] = 0
            with suppress(csv.Error):  # with a wrong separator the quotes of the line may be wrong, too
                header = _header(csv.reader(stream, delimiter=separator, strict=True))
                found[separator] = len(set(names) & set(header)) if names else len(header)
    return max(found, key=lambda separator: found[separator])


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
    """`None` for a word that means missing, unless it is `listed` as a value; else the word itself."""
    return None if word.lower() in _MISSING and word not in listed else word


def sha256_of(file: str) -> bytes:
    """The SHA-256 of a party's file; one that is not there or cannot be read is refused in a sentence."""
    path = _existing(file)
    unread = f"{file} should be a party's data file, but reading it"
    with explained(unread, "check `file` in [data].", OSError), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _existing(file: str) -> Path:
    if os.path.isdir(file):
        raise DataError(f"{file} should be a party's data file, but it is a folder; name the file in it.")
    if not os.path.isfile(file):
        raise DataError(
            f"{file} should be a party's data file, but it does not exist; check the path (`file` in [data])."
        )
    return Path(file)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """A CSV file as text; whatever fails while it is read is one sentence."""
    packed = path.name.lower().endswith(".gz")
    try:
        with (gzip.open if packed else open)(path, "rb") as raw:
            if raw.read(2) in UTF16:
                raise DataError(f"{path} should be a CSV file in UTF-8, got UTF-16; save it as CSV in UTF-8.")
        opener = gzip.open if packed else open
        with opener(path, "rt", encoding=_ENCODING, newline="") as stream:
            yield cast(TextIO, stream)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise DataError(f"{path} should be a CSV file in UTF-8, but reading it failed ({error}); check it.") from error


def _header(reader: Iterator[list[str]]) -> list[str]:
    return [name.strip() for name in next(reader, [])]


def _csv(path: Path, names: Sequence[str]) -> Iterator[RowBlock]:
    separator, uneven, first = separator_of(str(path), names), 0, 0
    with _opened(path) as stream:
        reader = csv.reader(stream, delimiter=separator, strict=True)
        header = _header(reader)
        at = _places(path, header, names or header)
        numbered = _numbered(reader)
        while some := list(islice(numbered, _BLOCK_ROWS)):
            whole = [row for _, row in some if len(row) == len(header)]
            lines = [line for line, row in some if len(row) == len(header)]
            if len(whole) < len(some):
                others = [line for line, row in some if len(row) not in (0, len(header))]  # 0: an empty line
                uneven, first = uneven + len(others), first or next(iter(others), 0)
            yield RowBlock({name: [row[i] for row in whole] for name, i in at.items()}, lines)
    if uneven:
        raise DataError(
            f"every row of {path} must have the {len(header)} columns of its first line, but {uneven} have more or "
            f"fewer, the first in line {first}; quote values that hold the separator '{separator}'."
        )


def _numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV reader, each with the line in which it begins; a quoted value may hold line breaks."""
    begins = reader.line_num + 1
    for row in reader:
        yield begins, row
        begins = reader.line_num + 1


def _parquet(path: Path, names: Sequence[str]) -> Iterator[RowBlock]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{path} needs the Python package pyarrow, which is not installed; run `pip install pyarrow`."
        ) from error
    expected, kinds = f"{path} should be a Parquet file, but reading it", (OSError, ValueError, NotImplementedError)
    with explained(expected, "check it.", *kinds), parquet.ParquetFile(path) as table:
        header, begins = table.schema_arrow.names, 1
        at = _places(path, header, names or header)
        for batch in table.iter_batches(batch_size=_BLOCK_ROWS, columns=list(at)):
            values = {name: batch.column(name).to_pylist() for name in at}
            yield RowBlock(values, range(begins, begins + batch.num_rows))
            begins += batch.num_rows


def _places(path: Path, header: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """The places of the named columns. If none is there, the first line may be a record, and no error repeats it."""
    if not header:
        raise DataError(f"the first line of {path} must name its columns, but the file is empty; check the file.")
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
