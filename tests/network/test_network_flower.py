"""The same run with Flower as its engine: a real SuperLink and real SuperNodes on loopback, with TLS and node keys."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from federation import Parties, config_of

from dpzv import config as configuration
from dpzv.data import catalogue
from dpzv.errors import ConfigError, DataError, DpzvError
from dpzv.network import flower
from dpzv.network.keyfiles import create_authority, issue_party
from dpzv.network.memory_transport import MemoryListener
from dpzv.privacy.statement import read_ledger, spent

APP = Path(__file__).parents[2] / "examples" / "flower"
BIN = Path(sys.executable).parent
NAMES = ("north", "east")
ROUNDS = 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Town:
    """Parties' files in a folder, and Flower's processes, which end with it."""

    def __init__(self, folder: Path, rounds: int = ROUNDS, *settings: str) -> None:
        self.folder, self.out = folder, folder / "server" / "run"
        self.link, self.data = free_port(), free_port()
        self.started: list[subprocess.Popen[bytes]] = []
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        self.environment = kept | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        create_authority(folder / "ca", 20)
        (folder / "ca" / "alignment.key").write_text("5a" * 32 + "\n")  # so that the split is that of every test
        for name in ("server", "superlink", *NAMES):
            issue_party(folder / "ca", name, folder / name / "keys", None, 10)
        self._write_parties(rounds, settings)
        (folder / "flwr").mkdir()
        root = folder / "superlink" / "keys" / "ca.crt"
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{self.link}"\nroot-certificates = "{root}"\n'
        )

    def _write_parties(self, rounds: int, settings: tuple[str, ...]) -> None:
        devices = f"network.devices={list(NAMES)}".replace("'", '"')
        config = config_of(devices, f"train.rounds={rounds}", "noise.source=exact", "head.rule=frozen", *settings)
        digits = catalogue.load("digits")
        draw = np.random.default_rng(0)
        for m, name in enumerate(("server", *NAMES)):
            own = self.folder / name
            (own / "run.toml").write_text(configuration.render(config))
            rows = draw.permutation(len(digits.y_train))[: len(digits.y_train) - 10 * m]
            values = digits.y_train[:, None] if m == 0 else digits.x_train[m - 1]
            names = ["digit"] if m == 0 else [f"pixel{i}" for i in range(values.shape[1])]
            lines = [",".join(["id", *names]), *(f"r{i}," + ",".join(str(v) for v in values[i]) for i in rows)]
            (own / "records.csv").write_text("\n".join(lines) + "\n")
            party: dict[str, object] = {"run": "run.toml", "keys": "keys", "name": name, "out": "run"}
            file = {"file": "records.csv", "id": "id"}
            if m == 0:
                labels = file | {"label": "digit", "task": "classes", "classes": [str(i) for i in range(10)]}
                party |= {"listen": f"127.0.0.1:{self.data}", "data": {"labels": labels}}
            else:
                columns = [{"name": n, "kind": "range", "low": 0, "high": 1, "source": "grey"} for n in names]
                party |= {"server": f"127.0.0.1:{self.data}", "data": {"features": file | {"columns": columns}}}
            (own / "party.toml").write_bytes(msgspec.toml.encode(party))

    def start(self, log: str, *command: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log}.log").open("ab") as file:
            made = subprocess.Popen(
                [BIN / command[0], *command[1:]], stdout=file, stderr=file, cwd=self.folder, env=self.environment
            )
        self.started.append(made)
        return made

    def superlink(self) -> None:
        keys = self.folder / "superlink" / "keys"
        files = ["--ssl-certfile", keys / "superlink.crt", "--ssl-keyfile", keys / "superlink.key"]
        where = ["--host", "127.0.0.1", "--port", str(self.link), "--ssl-ca-certfile", keys / "ca.crt"]
        kept = ["--database", self.folder / "superlink" / "state.db"]
        alone = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self.start("superlink", "flower-superlink", *files, *where, *kept, *alone)
        self.until(self.listening, 60)

    def listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.link)) == 0

    def node_key(self, name: str) -> Path:
        """A new key for a SuperNode; the public one lies beside it."""
        key, path = ec.generate_private_key(ec.SECP384R1()), self.folder / f"{name}.node"
        ssh, pem = serialization.Encoding.OpenSSH, serialization.Encoding.PEM
        path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()))
        path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(ssh, serialization.PublicFormat.OpenSSH))
        return path

    def register(self, *names: str) -> None:
        """Make these SuperNodes' keys and tell the SuperLink of them."""
        for name in names:
            public = self.node_key(name).with_suffix(".pub")
            self.start("register", "flwr", "supernode", "register", public, "here")
        for process in self.started[-len(names) :]:
            assert process.wait(60) == 0, self.logs("register")

    def supernode(self, name: str, key: Path, node_config: str) -> subprocess.Popen[bytes]:
        root = self.folder / "superlink" / "keys" / "ca.crt"
        where = ["--superlink", f"127.0.0.1:{self.link}", "--root-certificates", root, "--port", str(free_port())]
        own = ["--auth-supernode-private-key", key, "--node-config", node_config]
        return self.start(name, "flower-supernode", *where, *own)

    def again(self, name: str) -> None:
        """Start a crashed SuperNode until the SuperLink takes it back, as a supervisor would."""
        for attempt in range(20):
            made = self.supernode(f"{name}-{attempt}", self.folder / f"{name}.node", self.config(name))
            self.until(
                lambda made=made, n=f"{name}-{attempt}": made.poll() is not None or "Node ID" in self.logs(n), 60
            )
            if made.poll() is None:
                return
            time.sleep(5)
        raise AssertionError(self.logs("superlink"))

    def config(self, name: str) -> str:
        return f'party="{self.folder / name / "party.toml"}"'

    def run(self) -> subprocess.Popen[bytes]:
        return self.start("run", "flwr", "run", APP, "here", "--stream", "--run-config", self.config("server"))

    def round(self) -> int:
        status = self.out / "status.json"
        return int(json.loads(status.read_text())["round"]) if status.exists() else 0

    def until(self, true: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.logs("superlink", "run", *NAMES)
            time.sleep(0.1)

    def logs(self, *names: str) -> str:
        files = [self.folder / f"{name}.log" for name in names]
        return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-9000:]}" for f in files if f.exists())

    def left(self) -> list[int]:
        """The processes of this folder's Flower that still run, whoever started them."""
        mark, found = f"FLWR_HOME={self.folder / 'flwr'}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def close(self) -> None:
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.started):
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        end = time.monotonic() + 10  # Flower's helpers notice within a second that whoever started them is gone
        while self.left() and time.monotonic() < end:
            time.sleep(0.2)
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_run_by_flower(tmp_path: Path) -> None:
    """All rounds are released and paid for, results stay out of Flower's hands, and a strange SuperNode is refused."""
    with closing(Town(tmp_path)) as town:
        town.superlink()
        stranger = town.supernode("stranger", town.node_key("stranger"), town.config("north"))
        town.register(*NAMES)
        for name in NAMES:
            town.supernode(name, tmp_path / f"{name}.node", town.config(name))
        running = town.run()
        assert running.wait(300) == 0, town.logs("run", "superlink", *NAMES)
        assert stranger.wait(10) != 0
    summary = json.loads((town.out / "summary.json").read_text())
    assert summary["rounds"] == read_ledger(town.out).releases == ROUNDS
    assert summary["guarantee"]
    assert summary["epsilon"] == spent([town.out]).epsilon == 5
    assert summary["test_accuracy"] > 0.3  # of ten classes
    for m, name in enumerate(NAMES, 1):
        assert (tmp_path / name / "run" / "weights" / f"device-{m}.safetensors").exists()
    told = town.logs("run")
    assert told.count("is asked to take part") == len(NAMES)
    assert all(f"device '{name}' has finished" in told for name in NAMES)
    assert "Guarantee:   yes" in told
    results = re.findall(r"round \d+ of \d+: [^\"]+", (town.out / "server.log").read_text())
    assert len(results) == 3  # they depend on labels, so they are nowhere else
    assert not any(result in town.logs("run", "superlink", *NAMES) for result in results)
    assert "Failed to activate SuperNode" in town.logs("stranger")
    assert town.left() == []


@pytest.mark.soak
def test_supernodes_that_fail_restart_or_crash_come_back(tmp_path: Path) -> None:
    """The run waits for them, they are asked again, and every round is released once."""
    rounds = 3000
    with closing(Town(tmp_path, rounds, "network.order=arrival", "network.max_delay=3")) as town:
        town.superlink()
        town.register(*NAMES)
        north = town.supernode("north", tmp_path / "north.node", town.config("north"))
        east = town.supernode("east", tmp_path / "east.node", "nothing=1")
        running = town.run()
        town.until(lambda: "failed ('ConfigError')" in town.logs("run"), 120)
        assert "`party` must be the path" in town.logs("east")
        for _ in range(2):  # first for its file, then in the middle of the rounds
            east.terminate()
            east.wait(30)
            before = town.round()
            east = town.supernode("east", tmp_path / "east.node", town.config("east"))
            town.until(lambda before=before: town.round() > before + 100, 120)
        north.kill()
        north.wait()
        town.again("north")
        assert running.wait(300) == 0, town.logs("run", "superlink", *NAMES)
    assert json.loads((town.out / "summary.json").read_text())["rounds"] == rounds
    assert read_ledger(town.out).releases == rounds
    assert town.logs("run").count("is asked to take part") == 5
    assert town.left() == []


LABELS_LEAK = """
import sys
from flwr.app import Context, RecordDict
from dpzv.network.flower import serve_run
serve_run(None, Context(1, 1, {}, RecordDict(), {"party": sys.argv[1]}))
"""


def test_why_the_server_failed_is_in_its_own_log_alone(tmp_path: Path) -> None:
    town = Town(tmp_path)
    records = tmp_path / "server" / "records.csv"
    records.write_text(records.read_text() + "r-secret,unheard-of\n")
    party = str(tmp_path / "server" / "party.toml")
    done = subprocess.run([sys.executable, "-c", LABELS_LEAK, party], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "server.log in the server's `out` folder says why" in done.stderr
    assert "of 1439 labels" not in done.stdout + done.stderr
    assert "1 of 1439 labels are missing or have another value" in (town.out / "server.log").read_text()


def test_a_party_without_its_file_is_told_what_to_do() -> None:
    for settings in ({}, {"party": ""}, {"party": 7}):
        with pytest.raises(ConfigError, match=r"`party` must be the path of this party's TOML file, .* start with X"):
            flower.party_of(settings, "X")
    with pytest.raises(DataError, match="cannot be read"):
        flower.party_of({"party": "nowhere.toml"}, "X")


def test_a_device_that_never_finds_its_server_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "GIVE_UP_SECONDS", 2.0)
    parties = Parties.made(tmp_path)
    device = parties.device(config_of(), 1, tmp_path / "out")
    attempts = flower.Attempts(parties.tls_connector("north", free_port()))
    with pytest.raises(DpzvError, match="out of reach for too long"):
        asyncio.run(asyncio.wait_for(device.run(attempts), 30))


def test_a_device_that_was_connected_in_between_does_not_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "GIVE_UP_SECONDS", 0.2)
    monkeypatch.setattr(flower, "ATTEMPT_SECONDS", 0.05)
    attempts = flower.Attempts(MemoryListener(NAMES).connector("north"))
    for _ in range(4):
        attempts.connect()
        time.sleep(0.1)
    monkeypatch.setattr(flower, "ATTEMPT_SECONDS", 10.0)
    attempts.connect()
    time.sleep(0.3)
    with pytest.raises(DpzvError):
        attempts.connect()


def test_the_page_starts_flower_as_it_is_tested_here() -> None:
    """The options that `docs/howto/deploy.md` gives to Flower's commands."""
    page = (APP.parents[1] / "docs" / "howto" / "deploy.md").read_text().replace("\\\n", "")
    typed = re.findall(r"^    (?:flower-|flwr )(.*)", page, re.MULTILINE)
    assert [line.split()[0] for line in typed] == ["superlink", "supernode", "supernode", "run"]
    options = {option for line in typed for option in re.findall(r"--[a-z-]+", line)}
    assert "--insecure" not in options
    assert len(options) > 10
    assert options <= set(re.findall(r"\"(--[a-z-]+)\"", Path(__file__).read_text()))
