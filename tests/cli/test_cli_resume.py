"""Real processes, really killed: a resumed run equals the uninterrupted one in weights, transcript and budget."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

SETTINGS = [
    "noise.source=seeded",
    "train.rounds=400",
    "train.B=128",
    "train.eval_every=50",
    "head.refit_steps=4",
    "head.rule=joint-zo",
    "head.momentum=0.5",
    'devices.compute=["exponential 0.01", 0.02, "exponential 0.015", 0.01]',
    "runtime.checkpoint_seconds=0.15",
]
ARGUMENTS = ["train", "digits", "--quiet", *(part for setting in SETTINGS for part in ("--set", setting))]


def begin(tmp_path: Path, name: str) -> subprocess.Popen[bytes]:
    """Start the run as a process of its own, or resume it if it was begun before."""
    begun = (tmp_path / name / "config.toml").exists()
    arguments = ["resume", name, "--quiet"] if begun else [*ARGUMENTS, "--out", name]
    return subprocess.Popen(
        [sys.executable, "-m", "dpzv", *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )


def state(folder: Path) -> dict[str, Any]:
    """Everything that must be equal: transcript, weights, budget, and metrics but for their seconds."""
    summary = json.loads((folder / "summary.json").read_text())
    for varying in ("seconds", "statement"):
        del summary[varying]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in metrics:
        del line["seconds"]
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        rows = ledger.execute("SELECT * FROM releases ORDER BY t").fetchall()
    return {
        "transcript": (folder / "transcript.jsonl").read_bytes(),
        "weights": {file.name: file.read_bytes() for file in sorted((folder / "weights").iterdir())},
        "summary": summary,
        "ledger": rows,
        "rounds": [line["round"] for line in metrics],
        "accuracy": [line["test_accuracy"] for line in metrics],
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """The state of a run left alone, and how long it took."""
    folder = tmp_path_factory.mktemp("alone")
    start = time.monotonic()
    assert begin(folder, "run").wait(120) == 0
    return state(folder / "run"), time.monotonic() - start


def killed_and_resumed(tmp_path: Path, kills: list[float]) -> dict[str, Any]:
    """Kill the run, and then each of its resumptions, after so many seconds; then let it finish."""
    for seconds in kills:
        process = begin(tmp_path, "run")
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert begin(tmp_path, "run").wait(120) == 0
    return state(tmp_path / "run")


@pytest.mark.parametrize("share", [0.55, 0.7, 0.9])
def test_kill_9_then_resume_equals_the_uninterrupted_run(
    tmp_path: Path, uninterrupted: tuple[dict[str, Any], float], share: float
) -> None:
    expected, seconds = uninterrupted
    assert killed_and_resumed(tmp_path, [share * seconds]) == expected


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30))
def test_many_kills_then_resume_equal_the_uninterrupted_run(
    tmp_path: Path, uninterrupted: tuple[dict[str, Any], float], seed: int
) -> None:
    expected, seconds = uninterrupted
    rng = random.Random(seed)
    kills = [rng.uniform(0.3, 1.0) * seconds for _ in range(rng.randint(1, 4))]
    assert killed_and_resumed(tmp_path, kills) == expected


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    tmp_path: Path, uninterrupted: tuple[dict[str, Any], float], cli: Cli
) -> None:
    assert begin(tmp_path, "again").wait(120) == 0
    assert state(tmp_path / "again") == uninterrupted[0]
    assert cli(*ARGUMENTS, "--set", "train.seed=1", "--out", "other").returncode == 0
    assert state(tmp_path / "other")["transcript"] != uninterrupted[0]["transcript"]


def test_ctrl_c_ends_with_130_and_resume_finishes_equal(
    tmp_path: Path, uninterrupted: tuple[dict[str, Any], float]
) -> None:
    process = begin(tmp_path, "run")
    while not (tmp_path / "run" / "checkpoint" / "state.safetensors").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not (tmp_path / "run" / "summary.json").exists()
    assert begin(tmp_path, "run").wait(120) == 0  # as many threads as before: another number rounds otherwise
    assert state(tmp_path / "run") == uninterrupted[0]


def test_max_seconds_ends_cleanly_with_a_summary_and_fewer_rounds(cli: Cli, tmp_path: Path) -> None:
    long = ("--set", "train.rounds=100000", "--set", "head.refit_steps=4", "--max-seconds", "1")
    done = cli(*ARGUMENTS[:2], *long, "--out", "run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 < summary["rounds"] < 100_000
    assert "Privacy statement" in done.stdout
    assert summary["epsilon_spent"] < summary["epsilon"]
