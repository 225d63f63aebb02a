"""Parties as real processes that are killed and frozen; the run ends all the same, with the budget it planned."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from federation import NAMES, Parties

CHILD = Path(__file__).with_name("parties_child.py")
T = 120
SETTINGS = (
    f"train.rounds={T}",
    "head.rule=frozen",
    "noise.source=exact",
    "runtime.checkpoint_seconds=0.3",
    "train.eval_every=40",
    "head.refit_epochs=20",
    "privacy.epsilon=200",  # little noise and small steps, so that two runs are comparable
    "train.eta_m=0.0003",
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Town:
    """The processes of one run."""

    def __init__(self, folder: Path, *settings: str) -> None:
        Parties.made(folder)
        self.folder, self.port, self._settings = folder, free_port(), (*SETTINGS, *settings)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("server", *NAMES):
            self.start(name)

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(CHILD), str(self.folder), name, str(self.port), *self._settings],
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=CHILD.parent,
            )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)
        if number != signal.SIGSTOP and number != signal.SIGCONT:
            self.processes[name].wait(30)

    def releases(self) -> int:
        """What the ledger has by now."""
        path = self.folder / "out" / "server" / "ledger.sqlite"
        if not path.exists():
            return 0
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            try:
                return int(connection.execute("SELECT COUNT(*) FROM releases").fetchone()[0])
            except sqlite3.OperationalError:
                return 0

    def until(self, reached: Callable[[], bool], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def finish(self, seconds: float = 120) -> dict[str, Any]:
        """Wait for everybody; the summary."""
        deadline = time.monotonic() + seconds
        for name, process in self.processes.items():
            try:
                code = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"{name} did not end\n{self.logs()}")
            assert code == 0, f"{name} ended with {code}\n{self.logs()}"
        summary: dict[str, Any] = json.loads((self.folder / "out" / "server" / "summary.json").read_text())
        return summary

    def logs(self) -> str:
        return "\n".join(
            f"--- {name}\n" + (self.folder / f"{name}.log").read_text()[-1500:] for name in ("server", *NAMES)
        )

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


@contextlib.contextmanager
def town(folder: Path, *settings: str) -> Iterator[Town]:
    made = Town(folder, *settings)
    try:
        yield made
    finally:
        made.close()


def check(run: Town, undisturbed: float) -> None:
    """The budget is the planned one, every round was released once, and the model is as good."""
    summary = run.finish()
    assert summary["rounds"] == T
    assert run.releases() == T
    assert summary["epsilon_spent"] <= summary["epsilon"]
    lines = [json.loads(line) for line in (run.folder / "out/server/transcript.jsonl").read_text().splitlines()]
    assert [line["t"] for line in lines] == list(range(1, T + 1))
    assert abs(summary["test_accuracy"] - undisturbed) < 0.0125  # one point, and 249 test records


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    with town(tmp_path_factory.mktemp("undisturbed")) as run:
        return float(run.finish()["test_accuracy"])


def test_a_killed_device_comes_back(tmp_path: Path, undisturbed: float) -> None:
    with town(tmp_path) as run:
        run.until(lambda: run.releases() > 0 or run.processes["server"].poll() is not None)
        run.kill("east")
        time.sleep(1)
        run.start("east")
        check(run, undisturbed)


def test_a_killed_server_comes_back(tmp_path: Path, undisturbed: float) -> None:
    with town(tmp_path) as run:
        run.until(lambda: run.releases() > 10)
        run.kill("server")
        before = run.releases()
        run.start("server")
        run.until(lambda: run.releases() > before)
        check(run, undisturbed)


@pytest.mark.soak
def test_a_frozen_device_is_noticed_and_the_others_go_on(tmp_path: Path, undisturbed: float) -> None:
    """In the order of arrival nobody waits for it; it is away within seconds, and back when it wakes."""
    with town(tmp_path, "network.order=arrival", "train.rounds=1000") as run:
        run.until(lambda: run.releases() > 4)
        run.kill("south", signal.SIGSTOP)
        frozen = time.monotonic()
        status = run.folder / "out" / "server" / "status.json"

        def away() -> bool:
            devices = json.loads(status.read_text())["devices"]
            return any(d["name"] == "south" and not d["here"] for d in devices)

        run.until(lambda: away() or run.processes["server"].poll() is not None)
        assert time.monotonic() - frozen < 8  # five seconds, and a status of every second
        run.kill("south", signal.SIGCONT)
        assert run.finish()["rounds"] == run.releases() == 1000


@pytest.mark.soak
def test_sigterm_stops_and_the_same_commands_go_on(tmp_path: Path, undisturbed: float) -> None:
    with town(tmp_path) as run:
        run.until(lambda: run.releases() > 8)
        run.kill("server", signal.SIGTERM)
        assert run.processes["server"].returncode == 3
        for name in NAMES:
            run.kill(name, signal.SIGTERM)
            assert run.processes[name].returncode == 0
        assert 8 < run.releases() < T
        for name in (*NAMES, "server"):
            run.start(name)
        check(run, undisturbed)
