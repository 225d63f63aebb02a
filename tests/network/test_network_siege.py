"""A run of many minutes while strangers attack its server, parties are killed at random and the disk is full once.

Every party is a real process with exact noise and the durable ledger; whoever dies is started again by the same
command, as a supervisor would. The attackers are the clients of `hostile/`, all at once. Rounds of the honest devices
may never stop for long, the server's memory stays near that of a quiet run, and at the end the ledger, the transcript,
what devices heard and their weights agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import hello
from hostile.fake_device import FakeDevice, read_words
from hostile.http2 import Link
from obstacles import Disk
from safetensors import safe_open
from town import Town, town

from dpzv import config as configuration
from dpzv.data.alignment import keyed
from dpzv.network.keyfiles import issue_party
from dpzv.network.wire import ListPiece, pack
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.assemble_device import make_device, uplink_of
from dpzv.runtime.device_networks import make_network
from dpzv.runtime.run_plan import noise_of, sizes_of

ROOT = Path(__file__).parents[2]
N = 6000
DEVICES = ["north", "east", "south"]
MEMBERS = ["frozen", "empties", "crumbs", "talker", "again"]
"""Attackers that are devices of the run, each called like its module in `hostile/`; they keep to the protocol until the
rounds begin."""
OTHERS = {"silent": ("--number", "1200"), "stranger": (), "bomb": ("--name", "outsider")}
"""Attackers without a certificate, or with that of a party outside the run, and their arguments."""
B = 256

LONGEST_GAP = 10.0
"""How many seconds may pass without a round."""

MEMORY = 2.0
"""How many times the memory of a quiet run the server may take."""


def config(T: int) -> dict[str, Any]:
    return {
        "data": {"name": "made-up", "holdout": 0.4},
        "devices": {"embedding": 1},
        "train": {"rounds": T, "B": B, "eta_m": 0.01, "momentum": 0.9, "eval_every": 20_000, "seed": 2},
        "head": {"rule": "frozen", "hidden": 16, "batch": 1024, "steps": 100},
        "privacy": {"epsilon": 100.0},
        "network": {"devices": [*DEVICES, *MEMBERS], "max_delay": 0},
        "runtime": {"kind": "network", "threads": 1, "checkpoint_seconds": 1.0},
    }


@dataclass
class Watch:
    """When rounds were last made, and the most memory that the server took."""

    run: Town
    last_t: int = 0
    since: float = field(default_factory=time.monotonic)
    longest: float = 0.0
    resident: int = 0

    def look(self) -> None:
        now, t = time.monotonic(), newest(self.run)
        if t > self.last_t:
            self.last_t, self.since = t, now
        self.longest = max(self.longest, now - self.since)
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self.run.processes['server'].pid}/status").read_text().splitlines()
            line = next(line for line in lines if line.startswith("VmRSS"))
            self.resident = max(self.resident, int(line.split()[1]) * 1024)


def newest(run: Town) -> int:
    """The newest round by the server's status, which is written every second."""
    assert run.disk is not None
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads(run.disk.seen(run.folder / "server" / "out" / "status.json").read_text())["round"])
    return 0


class Attackers:
    """One process for each client; one that ends, because it was refused or had its say, begins again."""

    def __init__(self, run: Town, settings: dict[str, Any]) -> None:
        self._run, self._keys = run, run.folder / "stolen"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.begun = dict.fromkeys([*MEMBERS, *OTHERS], 0)
        for name in [*MEMBERS, "outsider"]:
            issue_party(run.folder / "ca", name, self._keys / name, None, 10)
        hashes = keyed([f"record-{i}" for i in range(N)], bytes.fromhex("5a" * 32)).tobytes()
        frames = [pack(hello(configuration.parse(settings), "", 0, hashes)), pack(ListPiece(0, hashes))]
        self.words = self._keys / "words.txt"
        self.words.write_text("\n".join(frame.hex() for frame in frames))

    def behave(self) -> None:
        """Be devices like others until the rounds begin."""

        def one(name: str) -> None:
            link = Link(self._run.port, self._keys, name)
            FakeDevice(link, read_words(self.words), (2, B, 1)).go_on("rounds", 60)
            link.close()

        threads = [threading.Thread(target=one, args=(name,)) for name in MEMBERS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def keep_on(self) -> None:
        """Start all clients, and start those again that have ended."""
        for name, arguments in {**dict.fromkeys(MEMBERS, ()), **OTHERS}.items():
            child = self._children.get(name)
            if child is None or child.poll() is not None:
                command = [sys.executable, "-m", f"tests.network.hostile.{name}", str(self._run.port), *arguments]
                if name in MEMBERS:
                    command += ["--name", name, "--words", str(self.words)]
                if name in MEMBERS or name == "bomb":
                    command += ["--keys", str(self._keys)]
                if name == "frozen":
                    command += ["--batch", str(B), "--width", "1"]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                self._children[name] = subprocess.Popen([*command, "--seconds", "60"], cwd=ROOT, **quiet)
                self.begun[name] += 1

    def close(self) -> None:
        for child in self._children.values():
            child.kill()
            child.wait()


def under_attack(run: Town, attackers: Attackers, seconds: float) -> Watch:
    """Attack, kill and fill the disk for so long; the parties are left running."""
    draw, watch = random.Random(1), Watch(run)
    kills, disk_full_at, began = 0, seconds / 2, time.monotonic()
    next_kill = began + draw.uniform(10, 20)
    with contextlib.closing(attackers):
        while (passed := time.monotonic() - began) < seconds:
            attackers.keep_on()
            if time.monotonic() > next_kill:
                run.signal(draw.choice(["server", *DEVICES]), signal.SIGKILL)
                kills, next_kill = kills + 1, time.monotonic() + draw.uniform(10, 40)
            if passed > disk_full_at:
                disk_is_full_once(run)
                disk_full_at = seconds
            for name in ("server", *DEVICES):
                code = run.exit_code(name)
                if code is not None:
                    assert code in (-signal.SIGKILL, 6), f"{name} ended with {code}\n{run.logs()}"
                    run.start(name)
            watch.look()
            time.sleep(0.1)
    print(
        f"\n{seconds:.0f} s, {watch.last_t} rounds, {kills} kills, longest gap {watch.longest:.1f} s, attackers "
        f"{attackers.begun}, server {watch.resident / 1e6:.0f} MB at most"
    )
    return watch


def disk_is_full_once(run: Town) -> None:
    """The server ends with the code for a full disk; then the disk is free again."""
    assert run.disk is not None
    other = run.disk.seen(run.folder / "server" / "out" / "other")
    with contextlib.suppress(OSError):  # the server writes at the same time, so it may be full before
        run.disk.fill(other, 30_000)
    run.until(lambda: run.exit_code("server") is not None, 60)
    other.unlink()


def stopped(run: Town) -> None:
    """End all parties as an operator does; the server must obey within ten seconds."""
    for name in ("server", *DEVICES):
        run.signal(name, signal.SIGTERM)
    run.until(lambda: all(run.exit_code(name) is not None for name in ("server", *DEVICES)), 10)
    assert {run.exit_code(name) for name in ("server", *DEVICES)} <= {0, 130}, run.logs()


def everything_agrees(run: Town, settings: dict[str, Any]) -> None:
    """Ledger and transcript say the same; devices heard what the ledger holds; weights are what the releases make."""
    rows, out = run.ledger_rows(), run.out
    assert [t for t, *_ in rows] == list(range(1, len(rows) + 1))
    lines = [json.loads(line) for line in (out / "transcript.jsonl").read_text().splitlines()]
    stored = [(t, m, float.hex(np.frombuffer(Delta)[0])) for t, m, _, Delta in rows]
    assert [(line["t"], line["m"], line["Delta"]) for line in lines] == stored
    config, plan = configuration.parse(settings), read_ledger(out).plan
    x = np.zeros((plan.D, 2), np.float32)
    for m, name in enumerate(DEVICES, 1):
        own = [(t, position, Delta) for t, to, position, Delta in rows if to == m]
        said = {f"{t} {m} {position} {Delta.hex()}" for t, position, Delta in own}
        heard = set((run.folder / name / "heard.txt").read_text().splitlines())
        assert heard <= said, f"{name} heard a release that the ledger does not hold"
        noise, features = noise_of(config), torch.from_numpy(x)
        network = make_network(config, m, plan.M, x, plan, noise)
        sizes, uplink = sizes_of(config, plan.D, plan.M), uplink_of(config, plan, noise)
        rule = make_device(config, m, network, features, features, sizes, uplink)[0].method
        with safe_open(run.folder / name / "out" / "state.safetensors", "pt") as file:
            reached = json.loads(file.metadata()["state"])["position"]
            weights = {key: file.get_tensor(f"network.{key}") for key in rule.network.state_dict()}
        assert 0 < reached <= len(own)  # it may have been away since its last checkpoint
        for t, position, Delta in own[:reached]:
            rule.update(np.frombuffer(Delta), position=position, t=t)
        for key, value in rule.network.state_dict().items():
            assert torch.equal(weights[key], value), f"{name} missed a release, or applied one twice"


@contextlib.contextmanager
def begun(folder: Path, settings: dict[str, Any]) -> Iterator[tuple[Town, Attackers]]:
    """A run whose rounds have begun, its server's folder on a disk of its own."""
    disk = Disk(1_000_000_000)
    try:
        disk.hold(folder / "server" / "out")
    except OSError as error:
        pytest.skip(str(error))
    with town(folder, settings, N, disk=disk) as run:
        attackers = Attackers(run, settings)
        run.start("server")
        run.until(lambda: "listening" in run.log("server"))
        for name in DEVICES:
            run.start(name)
        attackers.behave()
        run.until(lambda: newest(run) > 0)
        yield run, attackers


def quiet(folder: Path, settings: dict[str, Any], seconds: float) -> int:
    """The most memory that the server of an undisturbed run takes."""
    with begun(folder, settings) as (run, _):
        watch, end = Watch(run), time.monotonic() + seconds
        while time.monotonic() < end:
            watch.look()
            time.sleep(0.1)
        stopped(run)
        everything_agrees(run, settings)
        return watch.resident


@pytest.mark.soak
def test_half_an_hour_under_attack(tmp_path: Path) -> None:
    settings, seconds = config(8_000_000), float(os.environ.get("SIEGE_SECONDS", "1800"))
    usual = quiet(tmp_path / "quiet", settings, min(60.0, seconds))
    with begun(tmp_path / "attacked", settings) as (run, attackers):
        watch = under_attack(run, attackers, seconds)
        stopped(run)
        everything_agrees(run, settings)
    assert watch.longest < LONGEST_GAP
    assert watch.resident < MEMORY * usual, f"{watch.resident / 1e6:.0f} MB against {usual / 1e6:.0f} MB"
