"""The ledger's file: SQLite with a write-ahead log, one owner at a time, any number of readers.

The owner holds an advisory lock on a file beside the ledger; SQLite's own locks stay free, so that a reader sees every
committed row of a live run. The lock file of a process that died is taken over.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar
from urllib.parse import quote

import msgspec

from dpzv.durable import Lock
from dpzv.errors import DiskError, PrivacyRefused

__all__ = [
    "ENDED",
    "NAMES",
    "NAMES_KEY",
    "OLD_COPY",
    "Owned",
    "ReleaseRow",
    "create",
    "insert_releases",
    "ledgers_at",
    "lock_beside",
    "meta_of",
    "note",
    "plain_errors",
    "reached",
    "refuse_ended",
    "refuse_lost",
    "refuse_second_copy",
    "reopen",
    "snapshot",
    "turns",
]

T = TypeVar("T")

ReleaseRow = tuple[int, int, int, int, float, bytes, bytes]
"""t, m, position, B, sigma_dp, Delta, frame_xxh3: the columns of the table `releases`, in its order."""

_ROW, _AT_ONCE = "(?, ?, ?, ?, ?, ?, ?)", 32
SCHEMA = 8
NAMES_KEY, NAMES, ENDED = "names_key", "names", "ended"
"""Keys of `meta` that are formats: how records are named, their names, and whether the run is ended for good."""

OLD_COPY = "old copy"
"""The key of `meta` that a ledger gets when it turns out to be an old copy, so that nobody opens or counts it again; it
is a format."""

# Delta is the little-endian float64 numbers of the release: a replayed round must be bit-equal. The plan
# in `meta` and an event are MessagePack (`privacy/events.py`). The order of the columns of `releases` is a format,
# since rows are inserted by place.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL);
CREATE TABLE releases (
    t INTEGER PRIMARY KEY, m INTEGER NOT NULL, position INTEGER NOT NULL, B INTEGER NOT NULL,
    sigma_dp REAL NOT NULL, Delta BLOB NOT NULL, frame_xxh3 BLOB NOT NULL
);
CREATE TABLE events (number INTEGER PRIMARY KEY, event BLOB NOT NULL);
CREATE TABLE sessions (number INTEGER PRIMARY KEY, session TEXT NOT NULL);
"""

_DISK = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNWRITABLE = "the ledger {path} could not be written ({error}); free space or make the folder writable."
_IN_USE = "the ledger {path} is in use by another process; a ledger has one owner, wait for it to end."


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn an error of SQLite or of the file system into one sentence with the right exit code."""
    try:
        yield
    except OSError as error:
        raise DiskError(_UNWRITABLE.format(path=path, error=error)) from error
    except (sqlite3.Error, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DISK:
            raise DiskError(_UNWRITABLE.format(path=path, error=error)) from error
        if code in _BUSY:
            raise PrivacyRefused(_IN_USE.format(path=path)) from error
        raise PrivacyRefused(
            f"the ledger {path} cannot be read ({error}); the budget already spent is unknown, "
            "so the run cannot go on: start a new run."
        ) from error


class Owned:
    """A connection and the lock that makes it the only one that writes; both are closed together.

    As a context manager it closes only on an error, so that the block can hand it on. With `new` the file must not
    exist yet, and such an error removes the new file again.
    """

    def __init__(self, path: Path, *, durable: bool, new: bool) -> None:
        self._path, self._new = path, new
        self._lock = lock_beside(path, path)
        try:
            if new and path.exists():
                self._new = False
                raise PrivacyRefused(f"{path} already holds a ledger; resume that run or choose another folder.")
            self.connection = _connect(path, durable=durable)
        except BaseException:
            self._unlock(remove=self._new)
            raise

    def close(self) -> None:
        """Let the file go."""
        try:
            self.connection.close()
        finally:
            self._unlock(remove=False)

    def _unlock(self, *, remove: bool) -> None:
        for ending in ("", "-wal", "-shm") if remove else ():
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
        self._lock.close()  # last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.connection.close()
            self._unlock(remove=self._new)


def create(path: Path, meta: dict[str, str | bytes], *, durable: bool) -> Owned:
    """Make a new file that holds `meta`, all of it or none, and own it until the result is closed."""
    with Owned(path, durable=durable, new=True) as owned:
        owned.connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA};")
        owned.connection.executemany("INSERT INTO meta VALUES (?, ?)", (meta | {"path": str(path.resolve())}).items())
        owned.connection.execute("COMMIT")
        return owned


def reopen(path: Path, *, durable: bool) -> Owned:
    """Open an existing file, checked for damage, and own it until the result is closed.

    A copy is refused while the file that it was made from is still where it was; one that was moved is not.
    """
    refuse_lost(path)
    with Owned(path, durable=durable, new=False) as owned:
        _refuse_damaged(owned.connection)
        refuse_second_copy(path, owned.connection)
        owned.connection.execute("UPDATE meta SET value = ? WHERE key = 'path'", (str(path.resolve()),))
        return owned


def refuse_second_copy(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a ledger at `path` that was copied while the one it was made from is still where it was."""
    run_id, before = (_meta(connection, key) for key in ("run_id", "path"))
    if before != str(path.resolve()) and _is_of_run(Path(before), run_id):
        raise PrivacyRefused(
            f"the ledger {path} is a copy of {before}; two copies would each spend the whole budget, so "
            "resume the original where it lies, or start a new run that names this one as its parent."
        )


def note(connection: sqlite3.Connection, key: str) -> None:
    """Put `key` into the table `meta`, where it stays as long as the file exists."""
    connection.execute("INSERT OR IGNORE INTO meta VALUES (?, 1)", (key,))


def ledgers_at(path: Path) -> list[Path]:
    """The ledger files that a path stands for: itself, the one in that folder, or all that are anywhere below it."""
    own = path / "ledger.sqlite"
    if not path.is_dir() or own.exists():
        return [(own if path.is_dir() else path).resolve()]
    return sorted(file.resolve() for file in path.rglob("ledger.sqlite")) or [own]


def meta_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """What the table `meta` says, without the names of records, which may be many."""
    return dict(connection.execute("SELECT key, value FROM meta WHERE key != ?", (NAMES,)))


def refuse_ended(path: Path) -> NoReturn:
    """Say that nothing more may be admitted."""
    raise PrivacyRefused(
        f"the run of ledger {path} was ended for good, so that later runs pay only for what it used; it cannot go on: "
        "start a new run that names it as its parent."
    )


def insert_releases(connection: sqlite3.Connection, rows: list[ReleaseRow]) -> None:
    """Commit rows of the table `releases`, all of them or none."""
    if len(rows) <= _AT_ONCE:  # one statement is a transaction of its own
        places = ", ".join([_ROW] * len(rows))
        connection.execute(f"INSERT INTO releases VALUES {places}", list(chain.from_iterable(rows)))
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany(f"INSERT INTO releases VALUES {_ROW}", rows)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def snapshot(path: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """What `read` finds in one moment of the ledger; nothing is written, and the run may be alive.

    A ledger without a log beside it has no owner and is read as it is. If an owner comes meanwhile, it is read once
    more, with all committed rows of the log.
    """
    if not path.is_file():
        raise PrivacyRefused(
            f"{path} must be the ledger of a run, but there is none; give the folder of a run, or its ledger.sqlite. "
            "Of a run that has lost its ledger nobody knows what it has spent."
        )
    log = path.with_name(path.name + "-wal")
    with plain_errors(path):
        while True:
            alone = not log.exists()
            name = f"file:{quote(str(path.resolve()))}?mode=ro" + ("&immutable=1" if alone else "")
            with closing(sqlite3.connect(name, uri=True, isolation_level=None, timeout=5.0)) as connection:
                _refuse_damaged(connection)
                connection.execute("BEGIN")
                found = read(connection)
            if not (alone and log.exists()):
                return found


def _meta(connection: sqlite3.Connection, key: str) -> str:
    """A text of the table `meta`."""
    found: str = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]
    return found


def _is_of_run(path: Path, run_id: str) -> bool:
    """Whether the file at `path` is a ledger of this run that could be opened."""
    if not os.path.isfile(path):
        return False
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0)) as connection:
            return _meta(connection, "run_id") == run_id
    except (sqlite3.Error, TypeError) as error:  # what is damaged cannot go on; what is locked or hidden perhaps can
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK | _BUSY


def refuse_lost(path: Path) -> None:
    """Refuse to go on with a run whose ledger is not there any more."""
    if not path.is_file():
        raise PrivacyRefused(
            f"the run's ledger {path} is missing; without it the budget already spent is unknown, "
            "so the run cannot go on: start a new run."
        )


def _refuse_damaged(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise sqlite3.DatabaseError("it is damaged")
    if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
        raise sqlite3.DatabaseError(f"it is not a ledger of schema {SCHEMA}")
    if connection.execute("SELECT value FROM meta WHERE key = ?", (OLD_COPY,)).fetchone():
        raise sqlite3.DatabaseError("a device showed that it is an old copy, which lacks releases that were made")


def lock_beside(path: Path, ledger: Path) -> Lock:
    """The lock on a file beside `path`; refused if another process has it, since `ledger` is in use then."""
    return Lock(path.with_name(path.name + ".lock"), PrivacyRefused(_IN_USE.format(path=ledger)))


def _connect(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Connect. A `durable` commit is on the disk when it returns; another survives the process but not the machine.

    Only the owner may read the file, whatever the umask is. SQLite gives the same mode to the files beside it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # a short log is soon written over instead of growing: a commit then takes half the time
        connection.execute("PRAGMA wal_autocheckpoint = 100")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    except BaseException:
        connection.close()
        raise
    return connection


def reached(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many releases are stored, and the round of the last one; -1 without any."""
    count, last = connection.execute("SELECT COUNT(*), COALESCE(MAX(t), -1) FROM releases").fetchone()
    return count, last


def turns(connection: sqlite3.Connection) -> Iterator[tuple[int, float, list[tuple[int, int]]]]:
    """The stored releases in their order: runs of them with the same B and sigma_dp, and each one's (m, position).

    A server that comes back reads all of them before it can go on, so they are read by thousands.
    """
    rows = connection.execute("SELECT B, sigma_dp, m, position FROM releases ORDER BY t")
    while some := rows.fetchmany(4096):
        for (B, sigma_dp), alike in groupby(some, key=lambda row: row[:2]):
            yield B, sigma_dp, [row[2:] for row in alike]
