"""Many ways to disturb a run between real processes: it ends all the same, with the budget that the ledger says.

Every party is `dpzv server` or `dpzv device`, with exact noise and the durable ledger. A party that dies is started
again by the same command, as its operator would. Afterwards: every round was released once; what devices heard is what
the ledger holds; each device's weights are exactly what its releases make of its start; and the model, asked through
`dpzv predict`, is as good as that of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from obstacles import Disk, Link
from sabotage import Fault
from safetensors.torch import load_file
from town import Town, records, town

from dpzv import config as configuration
from dpzv.data.alignment import aligned, keyed
from dpzv.data.schedule import BatchSchedule, holdout
from dpzv.privacy.events import unit_mu
from dpzv.privacy.plan import epsilon_spent
from dpzv.privacy.statement import LedgerView, read_ledger, spent
from dpzv.runtime.assemble_device import make_device, uplink_of
from dpzv.runtime.device_networks import make_network
from dpzv.runtime.run_plan import noise_of, sizes_of

T, N, HOLDOUT = 300, 6000, 0.4
DEVICES = ["north", "east", "south"]
CONFIG: dict[str, Any] = {
    "data": {"name": "made-up", "holdout": HOLDOUT},
    "devices": {"embedding": 1},  # so narrow that an untrained device loses most of what its columns say
    "train": {"rounds": T, "B": 256, "eta_m": 0.1, "momentum": 0.9, "eval_every": 100, "seed": 2},
    "head": {"rule": "frozen", "final": "refit", "hidden": 16, "batch": 1024, "steps": 100},
    "privacy": {"epsilon": 100.0},  # little noise, so that two runs are comparable
    "network": {"devices": DEVICES, "max_delay": 6},
    "runtime": {"kind": "network", "threads": 1, "checkpoint_seconds": 0.2},
}
LEARNING = CONFIG | {"head": CONFIG["head"] | {"rule": "dp-sgd"}, "privacy": {"epsilon": 25.0}}
"""The same with a head that is paid for step by step; its plan takes seconds, so only some schedules have it."""
WIDE = CONFIG | {"devices": {"embedding": 16}}
"""The same with a table that is larger than all other files of the server."""
POINT = 0.01
"""Undisturbed runs differ by less than half of it, with a head that learns by less than all of it: see
`test_undisturbed_runs_are_alike`."""
UNDISTURBED = {"frozen": 1, "dp-sgd": 3}
"""How many undisturbed runs a schedule is compared with, by their mean."""


@dataclass(frozen=True)
class Schedule:
    """Who is disturbed how. `faults` and `most` (bytes of a file) are for the first life of a party.

    says: a pattern of what the server's log must say of it. act: what happens from outside, once all are started.
    """

    name: str
    faults: dict[str, Fault] = field(default_factory=dict)
    lives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    most: int = 0
    act: Callable[[Town], None] = lambda run: None
    says: str = ""
    config: dict[str, Any] = field(default_factory=lambda: CONFIG)
    short: bool = False


def server_dies(where: str, nth: int = 1, **names: Any) -> Schedule:
    return Schedule(f"server killed: {where}, {nth}", {"server": Fault(where, nth)}, **names)


def device_dies(where: str, nth: int = 1, **names: Any) -> Schedule:
    return Schedule(f"device killed: {where}", {"east": Fault(where, nth)}, **names)


def device_says(what: Any, where: str, nth: int, **names: Any) -> Schedule:
    return Schedule(f"{what}: {where}", {"east": Fault(where, nth, what)}, says=r'device 2 [^"]*closed', **names)


def frozen(run: Town, *, who: str, seconds: float = 20) -> None:
    """Stop a process as if its machine hung; the other side notices within five seconds."""
    run.until(lambda: run.releases() > 40)
    run.signal(who, signal.SIGSTOP)
    teller, line = ("north", "the link to the server is lost") if who == "server" else ("server", "without a goodbye")
    noticed = run.until(lambda: line in run.log(teller), 10)
    print(f"\n{who} frozen: noticed after {noticed:.1f} s")
    assert noticed < 5
    if who != "server":  # and its operator can see it: the status is one of every second
        shown = run.until(lambda: any(d["name"] == who and not d["here"] for d in devices_of(run)), 10)
        assert shown < 2
    time.sleep(seconds - noticed)
    run.signal(who, signal.SIGCONT)


def devices_of(run: Town) -> list[dict[str, Any]]:
    """What `dpzv server --status` shows of the devices."""
    found: list[dict[str, Any]] = json.loads((run.out / "status.json").read_text())["devices"]
    return found


def both_killed(run: Town) -> None:
    run.until(lambda: run.releases() > 40)
    for name in ("server", "east"):
        run.signal(name, signal.SIGKILL)


def folder_lost(run: Town) -> None:
    """A device's machine is replaced: only its keys and records come back."""
    run.until(lambda: run.releases() > 40)
    run.signal("east", signal.SIGKILL)
    run.until(lambda: run.exit_code("east") is not None)
    shutil.rmtree(run.folder / "east" / "out")


def server_killed_while_a_device_is_frozen(run: Town) -> None:
    run.until(lambda: run.releases() > 40)
    run.signal("east", signal.SIGSTOP)
    run.until(lambda: "without a goodbye" in run.log("server"), 10)
    run.signal("server", signal.SIGKILL)
    time.sleep(2)
    run.signal("east", signal.SIGCONT)


def everybody_stopped(run: Town) -> None:
    """SIGTERM to all: a goodbye, and the same commands go on."""
    run.until(lambda: run.releases() > 40)
    for name in ("server", *DEVICES):
        run.signal(name, signal.SIGTERM)


def disk_fills(run: Town) -> None:
    """Whatever else lies on the server's disk takes all of it, until somebody removes it."""
    run.until(lambda: run.releases() > 40)
    assert run.disk is not None
    other = run.disk.seen(run.folder / "server" / "out" / "other")
    run.disk.fill(other, 30_000)
    run.until(lambda: run.exit_code("server") is not None)
    other.unlink()


SCHEDULES = (
    server_dies("ids arrive", 2),
    server_dies("records are aligned"),
    server_dies("a part of the fill arrives", 4),
    server_dies("a fill is complete", 3),
    server_dies("test rows arrive", 4),
    server_dies("a batch arrives", 60),
    server_dies("the gate is asked", 60),
    server_dies("noised, not stored", 60),
    server_dies("stored, not sent", 60, short=True),
    server_dies("sent release", 60, config=LEARNING),
    server_dies("a checkpoint is due", 3, config=LEARNING),
    server_dies("half-written state.safetensors", 3),
    server_dies("half-written state.safetensors", 19),
    server_dies("the refit begins"),
    server_dies("no summary yet"),
    server_dies("the summary is written"),
    device_dies("before hello"),
    device_dies("heard welcome", 2),
    device_dies("heard rows"),
    device_dies("sent fill", 2),
    device_dies("heard ask rounds"),
    device_dies("a batch is computed", 20),
    device_dies("sent batch", 20),
    device_dies("heard release", 20, short=True),
    device_dies("a release is applied", 20),
    device_dies("half-written state.safetensors", 3),
    device_dies("sent test rows", 6),
    device_dies("heard stop"),
    Schedule("device frozen for 20 s", act=partial(frozen, who="east")),
    Schedule("server frozen for 20 s", act=partial(frozen, who="server")),
    Schedule("everybody stopped by SIGTERM", act=everybody_stopped),
    Schedule("link cut in the alignment and in the rounds", lives={"east": (3_000, 140_000)}, short=True),
    Schedule("link silent in the rounds", lives={"east": (-250_000,)}),
    device_says("twice", "sent batch", 20, short=True),
    device_says("twice", "sent fill", 3),
    device_says("twice", "sent hello", 1),
    device_says("swap", "sent fill", 8),
    device_says("swap", "sent test rows", 10),
    device_says("replay", "sent batch", 20),
    Schedule("disk full: ledger", most=250_000, says="ledger.sqlite could not be written"),
    Schedule(
        "disk full: checkpoint", most=300_000, says="(state|untrained).safetensors could not be written", config=WIDE
    ),
    Schedule("disk full: alignment", most=100_000, says="alignment.safetensors could not be written"),
    Schedule("disk full: by others", act=disk_fills, says="could not be written"),
    Schedule("device killed, its folder lost", act=folder_lost),
    Schedule("server and device killed at once", act=both_killed),
    Schedule("server killed while a device is frozen", act=server_killed_while_a_device_is_frozen),
    Schedule(
        "link cut and server killed",
        {"server": Fault("stored, not sent", 60)},
        lives={"north": (200_000,), "south": (120_000, 60_000)},
    ),
)


def supervise(run: Town, schedule: Schedule, seconds: float = 90) -> dict[str, list[int]]:
    """Start again whoever dies, until the server has finished and everybody is back; how each has ended before."""
    deadline = time.monotonic() + seconds
    ends: dict[str, list[int]] = {name: [] for name in run.processes}
    due = {name for name, fault in schedule.faults.items() if fault.what == "kill"}
    while True:
        for name in run.processes:
            code = run.exit_code(name)
            if code is None or (name == "server" and code == 0):
                continue
            assert code in (-signal.SIGKILL, 0, 6, 130), f"{name} ended with {code}\n{run.logs()}"
            ends[name].append(code)
            run.start(name)
        if run.exit_code("server") == 0 and all(-signal.SIGKILL in ends[name] for name in due):
            return ends
        assert time.monotonic() < deadline, run.logs()
        time.sleep(0.02)


def carried_out(schedule: Schedule, folder: Path) -> tuple[float, float]:
    """Run it, and check all but the model; the test accuracy at the end of training, and that of predictions."""
    disk = Disk(4_000_000) if schedule.act is disk_fills else None
    if disk is not None:
        try:
            disk.hold(folder / "server" / "out")
        except OSError as error:
            pytest.skip(str(error))
    with town(folder, schedule.config, N, stay=True, disk=disk) as run:
        for name, lives in schedule.lives.items():
            run.through(name, Link(*lives))
        run.start("server", schedule.faults.get("server"), schedule.most)
        run.until(lambda: "listening" in run.log("server"))  # so that the first word of a device is heard
        for name in DEVICES:
            run.start(name, schedule.faults.get(name))
        schedule.act(run)
        ends = supervise(run, schedule)
        for name, fault in schedule.faults.items():
            assert fault.what == "kill" or (run.folder / name / "fired.txt").exists(), f"{fault} never came"
        for name, lives in schedule.lives.items():
            assert run.links[name].broken == len(lives)
        assert (6 in ends["server"]) == (schedule.most > 0 or disk is not None)
        assert re.search(schedule.says, run.log("server")), run.log("server")
        budget_is_the_ledgers(run, schedule.config)
        predictions = accuracy(run)
        each_release_once(run, schedule.config)
        return float(run.summary()["test_accuracy"]), predictions


def budget_is_the_ledgers(run: Town, settings: dict[str, Any]) -> None:
    """As many releases as planned, each once, and the summary claims what the ledger says."""
    summary, ledger, rows = run.summary(), read_ledger(run.out), run.ledger_rows()
    assert summary["rounds"] == ledger.releases == ledger.plan.T == T
    assert ledger.head_steps <= ledger.plan.head_steps
    assert summary["epsilon"] == spent([run.out]).epsilon == settings["privacy"]["epsilon"]
    assert math.isclose(summary["epsilon_spent"], epsilon_of(ledger, rows, settings["train"]["seed"]), rel_tol=1e-6)
    assert summary["epsilon_spent"] <= summary["epsilon"]
    assert summary["guarantee"] is True
    lines = [json.loads(line) for line in (run.out / "transcript.jsonl").read_text().splitlines()]
    stored = [(t, m, float.hex(np.frombuffer(Delta)[0])) for t, m, _, Delta in rows]
    assert [(line["t"], line["m"], line["Delta"]) for line in lines] == stored
    assert [t for t, *_ in stored] == list(range(1, T + 1))


def epsilon_of(ledger: LedgerView, rows: list[tuple[int, int, int, bytes]], seed: int) -> float:
    """What the rows of the ledger cost the record that took part most, counted anew."""
    plan, taken = ledger.plan, np.zeros(ledger.plan.D, int)
    for _, m, position, _ in rows:
        taken[BatchSchedule(seed, m, plan.B, plan.D).ids(position)] += 1
    unit_squared = unit_mu(plan.release(t=1, m=1, position=0, B=plan.B)) ** 2
    most = min(taken.max(), math.floor(plan.cap / unit_squared + 1e-6))  # further parts of a record are zeros
    return epsilon_spent(plan, releases=len(rows), unit_mu_squared=most * unit_squared, head_steps=ledger.head_steps)


def each_release_once(run: Town, settings: dict[str, Any]) -> None:
    """What devices heard is what the ledger holds, and their weights are their start and every release once."""
    rows = run.ledger_rows()
    config, plan = configuration.parse(settings), read_ledger(run.out).plan
    x = np.zeros((plan.D, 2), np.float32)
    for m, name in enumerate(DEVICES, 1):
        heard = set((run.folder / name / "heard.txt").read_text().splitlines())
        assert heard == {f"{t} {to} {position} {Delta.hex()}" for t, to, position, Delta in rows if to == m}, name
        noise, features = noise_of(config), torch.from_numpy(x)
        network = make_network(config, m, len(DEVICES), x, plan, noise)
        sizes, uplink = sizes_of(config, plan.D, plan.M), uplink_of(config, plan, noise)
        rule = make_device(config, m, network, features, features, sizes, uplink)[0].method
        for t, to, position, Delta in rows:
            if to == m:
                rule.update(np.frombuffer(Delta), position=position, t=t)
        weights = load_file(run.folder / name / "out" / "weights" / f"device-{m}.safetensors")
        for key, value in rule.network.state_dict().items():
            assert torch.equal(weights[key], value), f"{name} missed a release, or applied one twice"


def accuracy(run: Town) -> float:
    """How often predictions of the test records are right, by `dpzv predict` with the devices that stayed."""
    ids, (_, y) = [f"record-{i}" for i in range(N)], records(N, len(DEVICES))
    hashes = keyed(ids, bytes.fromhex("5a" * 32))
    rows = aligned(hashes, [hashes]).rows[0]
    test = rows[holdout(N, HOLDOUT)[1]]
    said = run.predict([ids[i] for i in test])
    return float(np.mean([said[ids[i]] == "ab"[y[i]] for i in test]))


class Undisturbed:
    """Test accuracies of runs that nobody disturbs, each made when first asked for."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._known: dict[str, float] = {}

    def __getitem__(self, schedule: Schedule) -> float:
        rule = schedule.config["head"]["rule"]
        if rule not in self._known:
            alone = Schedule("undisturbed", config=schedule.config)
            runs = [carried_out(alone, self._folders.mktemp("undisturbed")) for _ in range(UNDISTURBED[rule])]
            self._known[rule] = float(np.mean([predicted for _, predicted in runs]))
        return self._known[rule]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory)


def check(schedule: Schedule, folder: Path, undisturbed: Undisturbed) -> None:
    expected = undisturbed[schedule]
    for found in carried_out(schedule, folder):
        assert abs(found - expected) < POINT


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s.short], ids=lambda s: s.name)
def test_a_disturbed_run_ends_well(schedule: Schedule, tmp_path: Path, undisturbed: Undisturbed) -> None:
    check(schedule, tmp_path, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if not s.short], ids=lambda s: s.name)
def test_a_run_disturbed_in_many_ways_ends_well(schedule: Schedule, tmp_path: Path, undisturbed: Undisturbed) -> None:
    check(schedule, tmp_path, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize(("config", "most"), [(CONFIG, POINT / 2), (LEARNING, POINT)], ids=["frozen", "dp-sgd"])
def test_undisturbed_runs_are_alike(
    config: dict[str, Any], most: float, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A point means something: without faults the accuracy varies less, and an untrained model is far away."""
    again = Schedule("again", config=config)
    found = [undisturbed[again], *(x for i in range(5) for x in carried_out(again, tmp_path / str(i)))]
    print(f"\nundisturbed: {min(found):.4f} to {max(found):.4f}")
    assert max(found) - min(found) < most
