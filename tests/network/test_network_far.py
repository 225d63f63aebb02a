"""Parties in networks of their own, 50 ms apart each way over links that lose packets: the run ends all the same."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from federation import NAMES, Parties, config_of
from relay import Namespace, Relay, missing

from dpzv.network.keyfiles import create_authority, issue_party
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import run

CHILD = Path(__file__).with_name("far_child.py")
DELAY, LOSS = 0.05, 0.01
PARTIES = {name: f"10.77.0.{i}" for i, name in enumerate(("server", *NAMES), 1)}
PORT = 4433
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
SETTINGS = (
    "head.rule=frozen",
    "noise.source=exact",
    "network.order=arrival",
    "head.refit_steps=20",
)
GUARANTEE = (
    "guarantee",
    "epsilon",
    "epsilon_zero_out",
    "epsilon_replace_one",
    "delta_dp",
    "mu",
    "accounting",
    "neighbours",
    "protects",
    "noise_source",
)


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def relay() -> Iterator[Relay]:
    with Relay(list(PARTIES.values()), delay=DELAY, loss=LOSS, seed=0) as made:
        yield made


def test_the_relay_delays_and_drops_as_it_counts(relay: Relay) -> None:
    """Numbered datagrams with the time in them: none early, none twice, and as many lost as the relay says."""
    here, there = relay.namespaces[:2]
    sent, arrived = 1500, []
    with here.inside(_datagrams) as sender, there.inside(_datagrams) as receiver, ThreadPoolExecutor(1) as thread:
        receiver.bind((there.address, PORT))
        receiver.settimeout(2)

        def listen() -> None:
            with contextlib.suppress(TimeoutError):
                while True:
                    number, then = json.loads(receiver.recv(100))
                    arrived.append((number, time.monotonic() - then))

        listening = thread.submit(listen)
        for i in range(sent):
            while i - relay.carried - relay.dropped > 100:  # fewer than the queue of a device holds
                time.sleep(0.001)
            sender.sendto(json.dumps([i, time.monotonic()]).encode(), (there.address, PORT))
        listening.result()
    numbers = [number for number, _ in arrived]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == relay.carried == sent - relay.dropped
    assert min(delay for _, delay in arrived) >= DELAY
    assert 2 <= relay.dropped <= 35  # 15 expected, standard deviation 3.9; with the seed it is one number


def test_a_namespace_reaches_no_other_network(relay: Relay) -> None:
    """Not the loopback of this machine, and nothing that has no address in the plan."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for target in (("127.0.0.1", listening.getsockname()[1]), ("192.0.2.1", 80)):
            with pytest.raises(OSError, match="unreachable"):
                relay.namespaces[0].inside(lambda target=target: socket.create_connection(target, 5))


def test_far_parties_finish_with_the_same_guarantee(relay: Relay, tmp_path: Path) -> None:
    _finishes(relay, tmp_path, 60, seconds=150)


@pytest.mark.soak
@pytest.mark.parametrize("order", ["arrival", "turns"])
@pytest.mark.parametrize("loss", [LOSS, 0.05])
def test_far_parties_finish_a_longer_run(tmp_path: Path, order: str, loss: float) -> None:
    with Relay(list(PARTIES.values()), delay=DELAY, loss=loss, seed=1) as relay:
        _finishes(relay, tmp_path, 400, f"network.order={order}", "head.rule=dp-sgd", seconds=400)


@pytest.mark.soak
def test_a_slow_line_carries_a_large_table(tmp_path: Path) -> None:
    """Under reno, 1 % loss leaves 0.2 MB/s; a table and batches of megabytes must not look like a dead peer."""
    with Relay(list(PARTIES.values()), delay=DELAY, loss=LOSS, seed=2) as relay:
        for namespace in relay.namespaces:
            namespace.inside(lambda: CONGESTION.write_text("reno"))
        _finishes(relay, tmp_path, 4, "devices.embedding=512", "network.order=turns", seconds=150)
    log = (tmp_path / "server.log").read_text()
    assert log.count("is here") == len(NAMES), log


@pytest.mark.soak
def test_sixteen_directions_bring_far_parties_ten_times_the_scalars(tmp_path: Path) -> None:
    """A round waits for the line whatever it carries; slopes of 8 bits keep a batch within a few packets."""
    scalars = {}
    for K, codec in ((1, "float32"), (16, "int8")):
        (tmp_path / str(K)).mkdir()
        with Relay(list(PARTIES.values()), delay=DELAY, loss=LOSS, seed=3) as relay:
            changes = f"train.directions={K}", f"codec.name={codec}"
            scalars[K] = K * _finishes(relay, tmp_path / str(K), 400, *changes, seconds=200)
    assert scalars[16] >= 10 * scalars[1]


def _finishes(relay: Relay, folder: Path, T: int, *changes: str, seconds: float) -> float:
    """Run server and devices, each in its namespace, to their end, and compare with the run of one process.

    Returns rounds per second.
    """
    settings = (*SETTINGS, f"train.rounds={T}", f"train.eval_every={T}", *changes)
    _issue(folder)
    far = round_trip(relay.namespaces[1], relay.namespaces[0])
    assert far >= 2 * DELAY
    before = relay.carried
    _processes(relay, folder, settings, seconds)
    server = folder / "out" / "server"
    summary = json.loads((server / "summary.json").read_text())
    assert summary["rounds"] == _releases(server) == T
    assert summary["guarantee"] is True
    assert summary["epsilon_spent"] <= summary["epsilon"]
    near = _simulated(folder, settings)
    assert {key: summary[key] for key in GUARANTEE} == {key: near[key] for key in GUARANTEE}
    assert summary["sigma_dp"] >= near["sigma_dp"]  # who comes how often is not known before, and costs some noise
    assert relay.dropped > 0
    assert relay.carried - before > 4 * T  # every round's embeddings are several packets, and went this way
    first, *_, last = [json.loads(line) for line in (server / "metrics.jsonl").read_text().splitlines()]
    log = (folder / "server.log").read_text()
    rate = float(T / (last["seconds"] - first["seconds"]))
    print(
        f"\n{T} rounds, {' '.join(changes) or 'arrival'}: {rate:.1f} rounds/s, "
        f"{1000 * far:.0f} ms round trip, {relay.dropped} of {relay.carried + relay.dropped} packets dropped, "
        f"{log.count('is here') - len(NAMES)} reconnections"
    )
    return rate


def _issue(folder: Path) -> None:
    """Keys for everybody, for the address of its namespace."""
    create_authority(folder / "ca", 20)
    for name, address in PARTIES.items():
        issue_party(folder / "ca", name, folder / name, [address], 10)


def _processes(relay: Relay, folder: Path, settings: tuple[str, ...], seconds: float) -> None:
    """Start everybody in its namespace and wait until all have ended well; whatever happens, none is left."""
    address = f"{PARTIES['server']}:{PORT}"
    own = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    deadline = time.monotonic() + seconds
    try:
        for name, namespace in zip(PARTIES, relay.namespaces, strict=True):
            command = [sys.executable, str(CHILD), str(folder), name, address, *settings]
            with (folder / f"{name}.log").open("wb") as log:
                processes[name] = namespace.inside(
                    lambda command=command, log=log: subprocess.Popen(
                        command, stderr=log, env={**own, "OMP_NUM_THREADS": "1"}, cwd=CHILD.parent
                    )
                )
        for name, process in processes.items():
            try:
                code = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"{name} did not end\n{_logs(folder)}")
            assert code == 0, f"{name} ended with {code}\n{_logs(folder)}"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def round_trip(here: Namespace, there: Namespace) -> float:
    """Seconds that a TCP connection takes, at best."""
    listening = there.inside(lambda: socket.create_server((there.address, 0)))
    with listening:
        taken = []
        for _ in range(3):
            began = time.monotonic()
            here.inside(lambda: socket.create_connection(listening.getsockname(), 20)).close()
            taken.append(time.monotonic() - began)
    return min(taken)


def _simulated(folder: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    """The summary of the same run in one process."""
    config, data = config_of(*settings), Parties(folder).simulated(0.2)
    alone = msgspec.structs.replace(config, runtime=msgspec.structs.replace(config.runtime, kind="simulate"))
    networks = lambda *rest: make_networks(alone, data, *rest)  # noqa: E731
    summary = run(alone, data, networks, folder / "alone", lambda snapshot: True, math.inf)
    assert summary is not None
    return summary


def _releases(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'ledger.sqlite'}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM releases").fetchone()[0])


def _datagrams() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _logs(folder: Path) -> str:
    return "\n".join(f"--- {name}\n" + (folder / f"{name}.log").read_text()[-1500:] for name in PARTIES)
