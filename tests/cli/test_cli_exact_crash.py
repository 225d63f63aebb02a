"""Secret noise and kill -9: what was released stays released, is never drawn again, and the run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import Cli

SETTINGS = [
    "train.rounds=300",
    "train.B=128",
    "head.rule=dp-sgd",
    "head.batch=200",
    "head.steps=60",
    "head.refit_steps=4",
    "runtime.checkpoint_seconds=0.2",
]
ARGUMENTS = ["train", "digits", "--quiet", *(part for setting in SETTINGS for part in ("--set", setting))]

Releases = dict[int, tuple[int, str]]


def begin(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Start the run, or resume it if it was begun."""
    begun = (tmp_path / "run" / "config.toml").exists()
    return subprocess.Popen(
        [sys.executable, "-m", "dpzv", *(["resume", "run", "--quiet"] if begun else [*ARGUMENTS, "--out", "run"])],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )


def ledger(tmp_path: Path) -> tuple[Releases, int]:
    """The stored releases by round, and the head steps charged."""
    path = tmp_path / "run" / "ledger.sqlite"
    if not path.exists():
        return {}, 0
    with contextlib.closing(sqlite3.connect(path)) as connection:
        try:
            rows = connection.execute("SELECT t, m, Delta FROM releases").fetchall()
            events = connection.execute("SELECT event FROM events").fetchall()
        except sqlite3.OperationalError as error:  # killed before the tables were made
            if "no such table" not in str(error):
                raise
            return {}, 0
    steps = sum(msgspec.msgpack.decode(event).get("steps", 0) for (event,) in events)
    return {t: (m, struct.unpack("<d", Delta)[0].hex()) for t, m, Delta in rows}, steps


def sent(tmp_path: Path) -> Releases:
    """What the transcript shows as sent; a last line cut by the kill is left out."""
    path = tmp_path / "run" / "transcript.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {line["t"]: (line["m"], line["Delta"]) for line in map(json.loads, lines)}


def crash(tmp_path: Path, seed: int, kills: int) -> None:
    """Kill the run at random points and check the ledger after each."""
    rng = random.Random(seed)
    before: Releases = {}
    steps_before = 0
    for _ in range(kills):
        process = begin(tmp_path)
        try:
            process.wait(rng.uniform(1.5, 6.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        after, steps = ledger(tmp_path)
        # rows are never lost or changed, and everything that was sent is in the ledger with its value
        assert {t: after.get(t) for t in before} == before
        assert {t: after.get(t) for t in sent(tmp_path)} == sent(tmp_path)
        assert steps_before <= steps <= 60
        assert sorted(after) == list(range(1, len(after) + 1))
        before, steps_before = after, steps


def finish(tmp_path: Path, cli: Cli) -> None:
    """Let the run end, and compare the budget read back with what was released."""
    assert begin(tmp_path).wait(200) == 0
    stored, steps = ledger(tmp_path)
    assert stored == sent(tmp_path)
    assert len(stored) == 300
    told = json.loads(cli("privacy", "spent", "run", "--json").stdout)
    assert told["releases"] == 300
    assert told["head_steps"] == steps <= 60
    assert told["epsilon"] == 5.0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["guarantee"] is True


def test_killed_three_times_the_ledger_knows_all_and_the_run_ends(tmp_path: Path, cli: Cli) -> None:
    crash(tmp_path, seed=1, kills=3)
    finish(tmp_path, cli)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_killed_a_hundred_times(tmp_path: Path, cli: Cli, seed: int) -> None:
    """Twenty runs, five kills each."""
    crash(tmp_path, seed=100 + seed, kills=5)
    finish(tmp_path, cli)
