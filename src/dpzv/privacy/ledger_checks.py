"""Whether a ledger is the one to go on with: of the same run, no copy, and with all releases that were made.

The settings, the plan and the data that a run began with are compared whenever its ledger is opened again. A claim
holds for one schedule, one plan and one data set. If, say, the seed changed in the middle of a run, its batches would
hold other records than those that the ledger charges.

A note outside the run's folder shows a copied or restored ledger on the same machine. It lies in the user's state
directory, one small file for every run with secret noise. Every opening of a ledger begins a session with a random
number. The ledger keeps all its sessions, and the note keeps the newest that this machine has seen. A ledger that goes
on where this machine left off has the note's session among its own. A copy that was left behind lacks it, since the
other copy went on in a session of its own, and so does an older backup. To recognise a backup that was made within the
newest session, the note also keeps how much the ledger held when it was last saved. A new session is written to the
ledger first, and to the note before anything is released. If the process dies in between, the note still has the
session before, which the ledger has, too.

With a receipt a device proves to the server that it was sent a release. It is a keyed hash of which release it was,
under a key that only the ledger has, so nobody else can make one, and the server keeps no list. An old copy of the
ledger has the same key, so it recognises a receipt of a release that it does not know of.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from dpzv.durable import disk_errors, make_folder, refuse_unwritable, replacing
from dpzv.errors import DiskError, PrivacyRefused
from dpzv.privacy.ledger_file import lock_beside
from dpzv.privacy.plan import ParentRun, PlanRequest, request_of

__all__ = [
    "KEY_BYTES",
    "RECEIPT_BYTES",
    "Marker",
    "Receipts",
    "changes",
    "refuse_copy",
    "refuse_other_request",
    "refuse_other_settings",
    "refuse_stateless",
]

_RESUME = "resume with the settings and data the run began with, or start a new run"
_REMEDY = "set XDG_STATE_HOME to a folder that this user may write to and that outlasts the run"
KEY_BYTES, RECEIPT_BYTES = 32, 16


def changes(began: str, now: str) -> str:
    """The settings in which two TOML texts differ, in words (``train.seed = 0, got 1``); empty if they say the same."""
    return _differences(_settings(began), _settings(now))


def refuse_other_settings(path: Path, began: str, now: str) -> None:
    """Refuse to go on with the ledger at `path` if the settings it is bound to have changed."""
    _refuse(path, changes(began, now))


def refuse_other_request(path: Path, began: tuple[PlanRequest, str, str], now: tuple[PlanRequest, str, str]) -> None:
    """Refuse a ledger whose plan was made from another request, other data or another source of noise than now."""
    _refuse(path, _differences(_asked(*began), _asked(*now)))


def _refuse(path: Path, changed: str) -> None:
    if changed:
        raise PrivacyRefused(f"the run of ledger {path} began with {changed}; {_RESUME}.")


def _asked(plan: PlanRequest, data_fingerprint: str, noise_source: str) -> dict[str, Any]:
    """What a run was asked for, by name; settings that its head rule and starts do not use are 0 (`request_of`)."""
    return {"data": data_fingerprint, "noise.source": noise_source} | asdict(request_of(plan))


def _settings(text: str) -> dict[str, Any]:
    """Every ``section.key`` of a TOML text with its value."""
    found: dict[str, Any] = {}
    for section, value in msgspec.toml.decode(text).items():
        keys = value if isinstance(value, dict) else {}
        found |= {f"{section}.{key}": inner for key, inner in keys.items()} or {section: value}
    return found


def _differences(began: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    pairs = {name: (began.get(name, "nothing"), now.get(name, "nothing")) for name in {**began, **now}}
    return " and ".join(f"{name} = {_shown(a)}, got {_shown(b)}" for name, (a, b) in pairs.items() if a != b)


def _shown(value: Any) -> Any:
    """A value for a message; an earlier run is shown by the beginning of its name."""
    earlier = isinstance(value, tuple) and all(isinstance(item, ParentRun) for item in value)
    return ", ".join(run.run_id[:8] for run in value) or "nothing" if earlier else value


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


class Receipts:
    """The receipts of one run."""

    def __init__(self, run_id: str, key: bytes) -> None:
        self._begun = hashlib.blake2s(run_id.encode(), key=key, digest_size=RECEIPT_BYTES)

    def make(self, m: int, position: int, t: int) -> bytes:
        """The receipt of the release of round `t` for the batch at `position` of device m."""
        keyed = self._begun.copy()
        keyed.update(b" %d %d %d" % (m, position, t))  # a format: devices keep receipts while a run lasts
        return keyed.digest()

    def is_valid(self, receipt: bytes, m: int, position: int, t: int) -> bool:
        """Whether `receipt` is the one of this release."""
        return hmac.compare_digest(receipt, self.make(m, position, t))
