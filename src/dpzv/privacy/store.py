"""The ledger's file: SQLite with a write-ahead log, one owner at a time, failures as sentences."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dpzv.errors import DiskError, PrivacyRefused

__all__ = ["SCHEMA", "closed_on_error", "create", "plain_errors", "reopen"]

SCHEMA = 1

# Delta is a hexadecimal float: REAL would lose the sign of zero, and a replayed round must be bit-equal.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE releases (
    t INTEGER PRIMARY KEY, m INTEGER NOT NULL, position INTEGER NOT NULL, B INTEGER NOT NULL,
    sigma_dp REAL NOT NULL, Delta TEXT NOT NULL, frame_sha256 BLOB NOT NULL
);
CREATE TABLE starts (m INTEGER PRIMARY KEY, noise_multiplier REAL NOT NULL);
"""

_DISK = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}
_UNWRITABLE = "the ledger {path} could not be written ({error}); free space or make the folder writable."
_IN_USE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system raise into one sentence with the right exit code."""
    try:
        yield
    except OSError as error:
        raise DiskError(_UNWRITABLE.format(path=path, error=error)) from error
    except (sqlite3.Error, msgspec.MsgspecError, LookupError, ValueError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DISK:
            raise DiskError(_UNWRITABLE.format(path=path, error=error)) from error
        if code in _IN_USE:
            raise PrivacyRefused(
                f"the ledger {path} is in use by another process; a ledger has one owner, wait for it to end."
            ) from error
        raise PrivacyRefused(
            f"the ledger {path} cannot be read ({error}); the budget already spent is unknown, "
            "so the run cannot go on: start a new run."
        ) from error


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Let the file go when what is done first with a new connection fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def create(path: Path, meta: dict[str, str], *, durable: bool) -> sqlite3.Connection:
    """Make a new file that holds `meta`, all of it or none, and hold it alone until it is closed."""
    if path.exists():
        raise PrivacyRefused(f"{path} already holds a ledger; resume that run or choose another folder.")
    try:
        connection = _connect(path, durable=durable)
        with closed_on_error(connection):
            connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA};")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute("COMMIT")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return connection


def reopen(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Open an existing file, checked for damage, and hold it alone until it is closed."""
    if not path.is_file():
        raise PrivacyRefused(
            f"the run's ledger {path} is missing; without it the budget already spent is unknown, "
            "so the run cannot go on: start a new run."
        )
    connection = _connect(path, durable=durable)
    with closed_on_error(connection):
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("it is damaged")
        if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
            raise sqlite3.DatabaseError(f"it is not a ledger of schema {SCHEMA}")
    return connection


def _connect(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Durable: a commit is on the disk when it returns; else it outlives the process but not the machine."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
    with closed_on_error(connection):
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    return connection
