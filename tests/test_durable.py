"""Files are replaced whole, durably, and without leftovers, whoever writes them."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpzv.data.alignment import Fewest
from dpzv.data.files import cached
from dpzv.durable import Lock, replacing, write_atomically, write_tensors
from dpzv.errors import ConfigError, DiskError
from dpzv.network.alignment_state import AlignmentState, LabelRecords
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.keyfiles import create_authority
from dpzv.privacy import ledger_file
from dpzv.runtime.run_folder import RunFolder


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """What was synced (its inode) and renamed (inode and target), in order; all of it really happens."""
    found: list[tuple[str, object]] = []
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        found.append(("sync", os.fstat(fd).st_ino))
        fsync(fd)

    def renamed(source: Path, target: Path) -> None:
        found.append(("rename", (os.stat(source).st_ino, Path(target))))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(Path, "replace", renamed)
    return found


def align(folder: Path) -> Path:
    hashes = np.arange(64, dtype=np.uint8).reshape(4, 16)
    state = AlignmentState(folder, LabelRecords(hashes, np.zeros(4), "binary", 2, "x"), 1, 0.5, Fewest())
    state.take(1, hashes, "")
    state.settle()
    return folder / "alignment.safetensors"


def tensors(folder: Path) -> Path:
    write_tensors(folder / "w.safetensors", {"w": torch.ones(3)}, {})
    return folder / "w.safetensors"


def text(folder: Path) -> Path:
    write_atomically(folder / "a.json", b"{}")
    return folder / "a.json"


def cache(folder: Path) -> Path:
    cached("things", "ab", lambda: {"x": np.ones(2)})
    return folder / "cache" / "things-ab.npz"


def keys(folder: Path) -> Path:
    create_authority(folder, 10)
    return folder / "ca.key"


@pytest.mark.parametrize("write", [align, tensors, text, cache, keys])
def test_every_writer_syncs_the_file_before_its_name_and_the_folder_after(
    write: Callable[[Path], Path], tmp_path: Path, steps: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path))
    target = write(tmp_path)
    inode = target.stat().st_ino
    at = steps.index(("rename", (inode, target)))
    assert ("sync", inode) in steps[:at]
    assert ("sync", target.parent.stat().st_ino) in steps[at:]
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("write", [align, tensors, text, keys])
def test_a_new_folder_is_synced_into_the_one_above_it(
    write: Callable[[Path], Path], tmp_path: Path, steps: list[tuple[str, object]]
) -> None:
    target = write(tmp_path / "a" / "b")
    for made in (tmp_path / "a" / "b", tmp_path / "a"):
        assert steps.index(("sync", made.parent.stat().st_ino)) < steps.index(("sync", target.stat().st_ino)), made


def test_logs_and_ledger_are_synced_into_their_folder(tmp_path: Path, steps: list[tuple[str, object]]) -> None:
    folder = RunFolder.create(tmp_path / "run", "")
    made = steps.copy()
    with folder:
        assert {path.name for path in folder.path.iterdir()} == {"config.toml", "metrics.jsonl", "transcript.jsonl"}
        assert ("sync", folder.path.stat().st_ino) in steps[len(made) :]


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_the_files_of_a_run_are_for_their_owner_alone_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        with (
            RunFolder.create(tmp_path / "runs" / "one", "") as folder,
            ledger_file.create(folder.path / "ledger.sqlite", {}, durable=True) as owned,
        ):
            align(folder.path)
            tensors(folder.checkpoint.parent)
            folder.summary({})
            alive = modes(tmp_path)
            owned.close()
        with DeviceFolder(tmp_path / "device").held():
            tensors(tmp_path / "device" / "weights")
    finally:
        os.umask(before)
    assert {f"runs/one/ledger.sqlite{end}" for end in ("", "-wal", "-shm", ".lock")} <= set(alive)
    found = alive | modes(tmp_path)
    folders = {"runs", "runs/one", "runs/one/checkpoint", "device", "device/weights"}
    assert {name: mode for name, mode in found.items() if mode != (0o700 if name in folders else 0o600)} == {}


def killed_while_writing(folder: Path) -> None:
    """A process that the operating system kills in the middle of writing its checkpoint."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    write_tensors(folder / "state.safetensors", {"w": torch.ones(9999)}, {})


def test_what_a_killed_device_left_half_written_is_removed_at_its_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    child = multiprocessing.get_context("fork").Process(target=killed_while_writing, args=(folder,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGXFSZ
    assert any(path.is_file() for path in folder.rglob("*"))
    theirs = folder / ".notes"
    theirs.write_text("of the operator")
    with DeviceFolder(folder).held():
        assert {path.name for path in folder.rglob("*")} == {".lock", ".notes"}
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / ".state.safetensors.new").mkdir()
    (folder / "config.toml").touch()
    with RunFolder.existing(folder):
        assert not list((folder / "checkpoint").iterdir())


def test_private_keys_are_closed_to_others(tmp_path: Path) -> None:
    assert stat.S_IMODE(keys(tmp_path).stat().st_mode) == 0o600
    (tmp_path / ".x.key.new").write_text("left open by a killed process")
    write_atomically(tmp_path / "x.key", b"secret", 0o600)
    assert stat.S_IMODE((tmp_path / "x.key").stat().st_mode) == 0o600


@contextmanager
def small_disk(most: int) -> Iterator[None]:
    """No file can grow above `most` bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_tensors(path, {"w": torch.ones(3)}, {})
    with small_disk(4096), pytest.raises(DiskError, match=r"w.safetensors could not be written .*; free space or"):
        write_tensors(path, {"w": torch.ones(9999)}, {})
    with small_disk(4096), pytest.raises(DiskError, match=r"w.safetensors could not be written"):
        write_atomically(path, bytes(9999))
    assert load_file(path)["w"].tolist() == [1, 1, 1]
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


def test_an_error_of_the_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = text(tmp_path)

    def half() -> None:
        with replacing(path) as new:
            new.write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert path.read_bytes() == b"{}"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_writers_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing(path, shared=True) as one, replacing(path, shared=True) as two:
        assert one != two
        one.write_bytes(b"one")
        two.write_bytes(b"two")
    assert path.read_bytes() == b"one"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_tied_tensors_are_stored_each_by_itself(tmp_path: Path) -> None:
    w = torch.arange(3.0)
    write_tensors(tmp_path / "w", {"a": w, "b": w}, {})
    assert [t.tolist() for t in load_file(tmp_path / "w").values()] == [[0, 1, 2]] * 2


def test_a_lock_has_one_owner_however_often_it_changes_hands(tmp_path: Path) -> None:
    """The file is removed whenever it is let go: whoever opened it before must not take it for the new one."""
    owners, most, taken = 0, 0, 0

    def contend() -> None:
        nonlocal owners, most, taken
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            with suppress(ConfigError), closing(Lock(tmp_path / ".lock", ConfigError("in use"))):
                owners += 1
                most, taken = max(most, owners), taken + 1
                time.sleep(0)
                owners -= 1

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, list(tmp_path.iterdir())) == (1, [])
    assert taken > 10
