"""A copied or restored ledger is refused on the same machine; one that was moved, or whose process died, is not."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.privacy.ledger_child import child, create, reopen, write

from dpzv.errors import DiskError, PrivacyRefused


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "dpzv" / "runs"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with three releases."""
    (tmp_path / "run").mkdir()
    with contextlib.closing(create(tmp_path / "run" / "ledger.sqlite", durable=True)) as ledger:
        for t in range(3):
            write(ledger, t)
    return tmp_path / "run"


def go_on(folder: Path, rounds: int = 2) -> int:
    """Open the ledger of `folder`, make some releases, and close it; how many it then holds."""
    with contextlib.closing(reopen(folder / "ledger.sqlite", durable=True)) as ledger:
        for _ in range(rounds):
            write(ledger, ledger.last_t + 1)
        return ledger.releases


def test_of_two_copies_that_changed_places_one_goes_on(tmp_path: Path, run: Path) -> None:
    """Each of them looks right by itself: one has the name of the original, the other is the same file."""
    original = tmp_path / "original"
    shutil.copytree(run, tmp_path / "copy")
    run.rename(original)
    (tmp_path / "copy").rename(run)
    assert go_on(run) == 5
    original.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(PrivacyRefused, match="is a copy"):
            go_on(tmp_path / "elsewhere")
    shutil.rmtree(run)  # nor does it take over when the other is gone
    with pytest.raises(
        PrivacyRefused, match=r"is a copy or a restored backup: its run went on in .*/run/ledger\.sqlite"
    ):
        go_on(tmp_path / "elsewhere")


def test_a_backup_of_an_earlier_session_is_refused(tmp_path: Path, run: Path) -> None:
    shutil.copytree(run, tmp_path / "backup")
    go_on(run, rounds=0)  # nothing but an opening tells the two apart
    shutil.rmtree(run)
    shutil.move(tmp_path / "backup", run)
    with pytest.raises(PrivacyRefused, match="a copy or a restored backup"):
        go_on(run)


def test_a_backup_of_a_live_run_is_refused_once_the_run_was_saved_again(tmp_path: Path, run: Path) -> None:
    path = run / "ledger.sqlite"
    ledger = reopen(path, durable=True)
    shutil.copytree(run, tmp_path / "backup")
    write(ledger, 3)
    ledger.keep()
    ledger.close()
    shutil.rmtree(run)
    shutil.move(tmp_path / "backup", run)
    with pytest.raises(PrivacyRefused, match="holds 3 releases, but its run had made 4 when it was last saved"):
        go_on(run)


def test_a_ledger_that_was_moved_goes_on_and_its_old_place_does_not(tmp_path: Path, run: Path) -> None:
    """To another disk: the same bytes in a new file."""
    shutil.copytree(run, tmp_path / "moved")
    shutil.copytree(run, tmp_path / "backup")
    shutil.rmtree(run)
    assert go_on(tmp_path / "moved") == 5
    assert go_on(tmp_path / "moved") == 7
    shutil.move(tmp_path / "backup", run)
    with pytest.raises(PrivacyRefused, match="a copy or a restored backup"):
        go_on(run)


def test_a_run_that_comes_from_another_machine_is_taken_and_may_come_back(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.environ["XDG_STATE_HOME"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "there"))
    assert go_on(run) == 5
    assert go_on(run) == 7
    monkeypatch.setenv("XDG_STATE_HOME", here)
    assert go_on(run) == 9
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "there"))
    assert go_on(run) == 11


def test_two_machines_that_each_went_on_do_not_take_each_others_ledger(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "sent")
    assert go_on(run) == 5
    shutil.rmtree(run)
    with monkeypatch.context() as there:
        there.setenv("XDG_STATE_HOME", str(tmp_path / "there"))
        assert go_on(tmp_path / "sent", rounds=9) == 12
    with pytest.raises(PrivacyRefused, match="a copy or a restored backup"):
        go_on(tmp_path / "sent")


def test_while_one_copy_is_open_no_other_is(tmp_path: Path, run: Path) -> None:
    with contextlib.closing(reopen(run / "ledger.sqlite", durable=True)):
        run.rename(tmp_path / "renamed")
        shutil.copytree(tmp_path / "renamed", run, ignore=shutil.ignore_patterns("*.lock"))
        with pytest.raises(PrivacyRefused, match="in use by another process"):
            go_on(run)


def test_simulated_noise_leaves_no_note_and_secret_noise_one_for_its_user_alone(
    tmp_path: Path, run: Path, state: Path
) -> None:
    create(tmp_path / "seeded.sqlite", durable=False).close()
    (note,) = state.iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    assert note.stat().st_size < 400


def test_without_a_state_directory_nothing_begins(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(DiskError, match="set XDG_STATE_HOME to a folder that this user may write to"):
        create(tmp_path / "new.sqlite", durable=True)
    assert not (tmp_path / "new.sqlite").exists()
    with pytest.raises(DiskError, match="XDG_STATE_HOME"):
        go_on(run)


def test_a_note_that_cannot_be_read_is_no_permission(run: Path, state: Path) -> None:
    (note,) = state.iterdir()
    note.write_text("{}")
    with pytest.raises(PrivacyRefused, match=r"cannot be read .* remove it only if you are sure"):
        go_on(run)


@pytest.mark.parametrize("moment", ["before the note", "after the note"])
@pytest.mark.parametrize("begun", [False, True], ids=["new", "reopened"])
def test_a_process_that_dies_while_it_opens_locks_nobody_out(
    tmp_path: Path, run: Path, moment: str, begun: bool
) -> None:
    folder = run if begun else tmp_path
    shutil.copytree(run, tmp_path / "backup")
    ended = subprocess.run(**child(f"die {moment}", folder / "ledger.sqlite"), timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    held = 3 if begun else 0
    assert go_on(folder) == held + 2
    assert go_on(folder) == held + 4
    if begun:
        shutil.rmtree(run)
        shutil.move(tmp_path / "backup", run)
        with pytest.raises(PrivacyRefused, match="a copy or a restored backup"):
            go_on(run)
