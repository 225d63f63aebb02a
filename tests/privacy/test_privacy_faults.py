"""The ledger when the process is killed or the disk is full."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.privacy.ledger_child import child, create, frame, reopen, write

from dpzv.errors import DiskError
from dpzv.privacy.ledger import Ledger


def test_a_killed_process_never_loses_an_acknowledged_release(tmp_path: Path) -> None:
    """Killed with SIGKILL again and again, each time after another number of acknowledgements."""
    path = tmp_path / "ledger.sqlite"
    acknowledged: dict[int, str] = {}
    kills = (1, 7, 40)
    for rounds in kills:
        process = subprocess.Popen(**child("acknowledge", path), stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as lines:
            read = [lines.readline() for _ in range(rounds)]
            process.send_signal(signal.SIGKILL)
            read += lines.readlines()  # acknowledged before the kill took effect
        assert process.wait() == -signal.SIGKILL
        for line in read:
            t, Delta = line.split()
            assert int(t) not in acknowledged  # no round is released twice
            acknowledged[int(t)] = Delta
    assert len(acknowledged) >= sum(kills)
    with reopen(path, durable=True, at_least=len(acknowledged)) as ledger:
        # one release a kill may be stored and not yet acknowledged; never the other way round
        assert len(acknowledged) <= ledger.releases <= len(acknowledged) + len(kills)
        for t, Delta in acknowledged.items():
            stored = ledger.stored(t, frame(t))
            assert stored is not None
            assert float(stored[0]).hex() == Delta


def test_without_durability_flushed_rows_outlive_the_process(tmp_path: Path) -> None:
    """What was flushed is there after a sudden end, what was not is gone, and the run can go on."""
    path = tmp_path / "ledger.sqlite"
    assert subprocess.run(**child("flush", path), check=False).returncode == 9
    with reopen(path, durable=False, at_least=20) as ledger:
        assert ledger.last_t == 19
        write(ledger, 20)
    with reopen(path, durable=False) as ledger:
        assert ledger.releases == 21


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 0)])
def test_durable_means_synchronised_commits(tmp_path: Path, durable: bool, level: int) -> None:
    with create(tmp_path / "ledger.sqlite", durable=durable) as ledger:
        assert ledger._connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert ledger._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system could not be mounted: {mounted.stderr.strip()}")
    yield folder
    if subprocess.run(["umount", str(folder)], check=False).returncode:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # else nobody could remove the folder
        pytest.fail("a file of the small file system must not stay open after its ledger was closed.")


@pytest.mark.parametrize("durable", [True, False])
def test_a_full_disk_is_a_sentence_and_nothing_is_lost(small_disk: Path, durable: bool) -> None:
    path = small_disk / "ledger.sqlite"
    filler = small_disk / "filler"
    stored: list[float] = []

    def fill_up(ledger: Ledger) -> None:
        for t in range(10_000):
            Delta = write(ledger, t)
            if t % 50 == 49:
                ledger.flush()
            stored.append(Delta)

    def run() -> None:
        with create(path, durable=durable) as ledger:
            filler.write_bytes(b"\0" * 100_000)
            fill_up(ledger)

    with pytest.raises(DiskError, match="could not be written"):
        run()
    assert 10 < len(stored) < 10_000
    filler.unlink()
    with reopen(path, durable=durable) as ledger:
        assert ledger.releases == (len(stored) if durable else len(stored) // 50 * 50)
        for t in range(ledger.releases):
            assert ledger.stored(t, frame(t)) == stored[t]


def test_a_full_disk_at_creation_leaves_nothing_behind(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"\0" * 256 * 1024)
    with pytest.raises(DiskError, match="could not be written"):
        create(small_disk / "ledger.sqlite", durable=True)
    assert [p.name for p in small_disk.iterdir()] == ["filler"]


def test_a_file_size_limit_is_a_disk_error(tmp_path: Path) -> None:
    """The same failure without root: the system does not let the file grow."""
    path = tmp_path / "ledger.sqlite"
    found = subprocess.run(**child("grow", path), capture_output=True, check=False)
    assert found.returncode == DiskError.exit_code, found.stderr
    written, counted, sentence = found.stdout.split(maxsplit=2)
    assert int(counted) == int(written) + 1 > 10  # the one that could not be stored is counted, never the other way
    assert "could not be written" in sentence
    with reopen(path, durable=True, at_least=int(written)) as ledger:
        assert ledger.last_t >= int(written) - 1


def test_a_folder_that_is_not_there_is_a_disk_error(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="could not be written"):
        create(tmp_path / "nowhere" / "ledger.sqlite", durable=True)


def test_run_ids_differ(tmp_path: Path) -> None:
    with create(tmp_path / "a.sqlite", durable=True) as a, create(tmp_path / "b.sqlite", durable=True) as b:
        assert a.run_id != b.run_id
