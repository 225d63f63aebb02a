"""A note about a run outside its folder, by which a copied or restored ledger is recognised on the same machine.

It lies in the user's state directory, one small file for every run with secret noise. Every opening of a ledger begins
a session with a random number. The ledger keeps all its sessions, and the note keeps the newest that this machine has
seen. A ledger that goes on where this machine left off has the note's session among its own. A copy that was left
behind lacks it, since the other copy went on in a session of its own, and so does an older backup. To recognise a
backup that was made within the newest session, the note also keeps how much the ledger held when it was last saved.

A new session is written to the ledger first, and to the note before anything is released. If the process dies in
between, the note still has the session before, which the ledger has, too.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path

import msgspec

from dpzv.durable import disk_errors, make_folder, refuse_unwritable, replacing
from dpzv.errors import DiskError, PrivacyRefused
from dpzv.privacy.ledger_file import lock_beside

__all__ = ["Marker", "refuse_copy", "refuse_stateless"]

_REMEDY = "set XDG_STATE_HOME to a folder that this user may write to and that outlasts the run"


class Note(msgspec.Struct, frozen=True):
    """Where the run's ledger was, its newest session, and the rows it had. The names are the file's format."""

    path: str
    session: str
    releases: int
    events: int


class Marker:
    """The note of one run, owned as long as a ledger of this run is open."""

    def __init__(self, ledger: Path, run_id: str, connection: sqlite3.Connection, releases: int) -> None:
        """Begin a session of the ledger, which holds this many `releases`; refuse a copy and a restored backup."""
        self._ledger, self._connection, self._session = ledger, connection, ""
        self._file = _state_folder() / f"{run_id}.json"
        with disk_errors(self._file, _REMEDY):
            make_folder(self._file.parent)
            self._lock = lock_beside(self._file, ledger)
        try:
            self._begin(releases)
        except BaseException:
            self.close()
            raise

    def _begin(self, releases: int) -> None:
        _refuse_other(self._ledger, self._file, self._connection, releases)
        session = secrets.token_hex(16)
        self._connection.execute("INSERT INTO sessions (session) VALUES (?)", (session,))
        self._session = session
        self.write(releases)

    def write(self, releases: int) -> None:
        """Note that `releases` of the ledger are on the disk."""
        note = Note(str(self._ledger.resolve()), self._session, releases, _events(self._connection))
        with replacing(self._file, remedy=_REMEDY) as new:
            new.write_bytes(msgspec.json.encode(note))

    def close(self) -> None:
        """Let another process open a ledger of this run."""
        self._lock.close()


def refuse_stateless() -> None:
    """Refuse a run with secret noise where no note about it could be kept."""
    refuse_unwritable(_state_folder(), _REMEDY)


def refuse_copy(ledger: Path, run_id: str, connection: sqlite3.Connection, releases: int) -> None:
    """Refuse what a `Marker` would refuse, a copy or a restored backup of a run's ledger, and write nothing."""
    _refuse_other(ledger, _state_folder() / f"{run_id}.json", connection, releases)


def _read(file: Path) -> Note | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Note)
    except FileNotFoundError:  # a new run, or one that comes from another machine
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise PrivacyRefused(
            f"{file}, which tells a copied ledger from the one to go on with, cannot be read ({error}); "
            "remove it only if you are sure that this folder is neither a copy nor a restored backup."
        ) from None


def _refuse_other(ledger: Path, file: Path, connection: sqlite3.Connection, releases: int) -> None:
    """Refuse a ledger with this many `releases` if it is not the one that the note in `file` is about."""
    note = _read(file)
    if note is None:
        return
    if (note.session,) not in connection.execute("SELECT session FROM sessions").fetchall():
        raise PrivacyRefused(
            f"the ledger {ledger} is a copy or a restored backup: its run went on in {note.path}, and this "
            "ledger does not know of it. Two of them would each spend the whole budget; go on with the newest one, "
            "or start a new run that names this run as its parent."
        )
    if releases < note.releases or _events(connection) < note.events:
        raise PrivacyRefused(
            f"the ledger {ledger} holds {releases} releases, but its run had made {note.releases} when it "
            "was last saved: it is a restored backup, so the run cannot go on; start a new run that names this run "
            "as its parent."
        )


def _events(connection: sqlite3.Connection) -> int:
    found: int | None = connection.execute("SELECT MAX(number) FROM events").fetchone()[0]
    return found or 0


def _state_folder() -> Path:
    """Where notes are kept; the XDG base directory specification wants relative paths ignored."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".local" / "state") / "dpzv/runs"
    except RuntimeError as error:
        raise DiskError(f"a run with secret noise needs a state directory, got none ({error}); {_REMEDY}.") from None
