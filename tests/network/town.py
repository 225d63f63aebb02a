"""The parties of a run as real processes: `dpzv server` and `dpzv device` with their own files, on loopback.

They are forked from a process that has imported everything, so that a party starts in a moment.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from obstacles import Disk, Link
from sabotage import Fault, arm, limit_files

from dpzv.cli import main
from dpzv.network.keyfiles import create_authority, issue_party

PR_SET_PDEATHSIG, CLONE_NEWNS = 1, 0x20000
RANGE = 2.0
"""Public range of the features, on either side of 0."""


def records(n: int, M: int) -> tuple[list[NDArray[np.float64]], NDArray[np.int64]]:
    """Two classes; every device has one column that tells them apart a little, and one of noise."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, n)
    xs = [draw.standard_normal((n, 2)) for _ in range(M)]
    for x in xs:
        x[:, 0] += 2 * (y - 0.5)
    return xs, y


def write_parties(folder: Path, config: dict[str, Any], n: int, port: int) -> None:
    """Keys, records and TOML files of the server and of all devices of `config`, each in a folder of its own."""
    names = config["network"]["devices"]
    xs, y = records(n, len(names))
    create_authority(folder / "ca", 20)
    # the split follows from this key: the same in every run
    (folder / "ca" / "alignment.key").write_text("5a" * 32 + "\n")
    for m, name in enumerate(("server", *names)):
        own = folder / name
        issue_party(folder / "ca", name, own / "keys", None, 10)
        party = {"run": "run.toml", "keys": "keys", "name": name, "out": "out"}
        if m == 0:
            party["listen"] = f"127.0.0.1:{port}"
            lines = ["id,y", *(f"record-{i},{'ab'[label]}" for i, label in enumerate(y))]
            data = {"labels": {"file": "own.csv", "id": "id", "label": "y", "task": "classes", "classes": ["a", "b"]}}
        else:
            party["server"] = f"127.0.0.1:{port}"
            lines = ["id,u,v", *(f"record-{i},{u:.4f},{v:.4f}" for i, (u, v) in enumerate(xs[m - 1]))]
            column = {"kind": "range", "low": -RANGE, "high": RANGE, "source": "made up"}
            columns = [{"name": name, **column} for name in ("u", "v")]
            data = {"features": {"file": "own.csv", "id": "id", "columns": columns}}
        (own / "own.csv").write_text("\n".join(lines) + "\n")
        (own / "run.toml").write_text(tomli_w.dumps(config))
        (own / f"{name}.toml").write_text(tomli_w.dumps({**party, "data": data}))


def party(folder: str, arguments: list[str], fault: Fault | None, most: int, namespace: str) -> None:
    """A process: ``dpzv ARGUMENTS`` in `folder`, with a fault, with files of at most `most` bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # none outlasts tests that are killed
    if namespace:
        descriptor = os.open(namespace, os.O_RDONLY)
        if libc.setns(descriptor, CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(descriptor)
    os.chdir(folder)
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["OMP_NUM_THREADS"] = "1"
    arm(fault, Path())
    if most:
        limit_files(most)
    sys.argv = ["dpzv", *arguments]
    main()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["town", "dpzv.cli.network_command", "dpzv.network.server_party", "dpzv.network.predict", "pandas"]
)


class Town:
    """The processes of one run. `stay`: devices wait for predictions; `disk`: where the server's run folder is."""

    def __init__(
        self, folder: Path, config: dict[str, Any], n: int, *, stay: bool = False, disk: Disk | None = None
    ) -> None:
        self.folder, self._stay, self.disk = folder, stay, disk
        self.devices: list[str] = list(config["network"]["devices"])
        self.port = free_port()
        self.processes: dict[str, Any] = {}
        self.links: dict[str, Link] = {}
        write_parties(folder, config, n, self.port)

    @property
    def out(self) -> Path:
        """The server's run folder; a copy of it, if that is on a disk of its own."""
        path = self.folder / "server" / "out"
        if self.disk is None:
            return path
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.disk.seen(path), copy, ignore=shutil.ignore_patterns("*.new", ".tmp*", "other"))
        return copy

    def through(self, name: str, link: Link) -> None:
        """Let a device's link go through `link`."""
        self.links[name] = link
        file = self.folder / name / f"{name}.toml"
        file.write_text(file.read_text().replace(f":{self.port}", f":{link.open(self.port)}"))

    def start(self, name: str, fault: Fault | None = None, most: int = 0) -> None:
        """Start a party, as its operator would, in its first life perhaps with a fault."""
        verb = ["server"] if name == "server" else ["device", *(["--stay"] if self._stay else [])]
        self._run(name, [*verb, f"{name}.toml"], fault, most)

    def predict(self, ids: list[str], seconds: float = 60) -> dict[str, str]:
        """``dpzv predict`` at the server: what it says of each id; one that no device knows is asked for as well."""
        (self.folder / "server" / "ids.txt").write_text("\n".join(["nobody", *ids]))
        self._run("server", ["predict", "server.toml", "--ids", "ids.txt", "--out", "said.csv"], None, 0)
        self.processes["server"].join(seconds)
        assert self.processes["server"].exitcode == 0, self.logs()
        unknown = (self.folder / "server" / "said.unknown.csv").read_text().splitlines()
        assert unknown == ["id,unknown to", f"nobody,{' '.join(self.devices)}"]
        with (self.folder / "server" / "said.csv").open() as file:
            return {row["id"]: row["prediction"] for row in csv.DictReader(file)}

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def exit_code(self, name: str) -> int | None:
        code: int | None = self.processes[name].exitcode
        return code

    def releases(self) -> int:
        """What the ledger has by now."""
        return len(self.ledger_rows())

    def ledger_rows(self) -> list[tuple[int, int, int, bytes]]:
        """t, m, position and Delta of all releases of the ledger."""
        path = self.out / "ledger.sqlite"
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute("SELECT t, m, position, Delta FROM releases ORDER BY t").fetchall()
            except sqlite3.DatabaseError:  # its tables are not made yet, or a copy was made in the middle of a write
                return []

    def until(self, reached: Callable[[], bool], seconds: float = 60) -> float:
        """Wait for it; how long it took."""
        began = time.monotonic()
        while not reached():
            assert time.monotonic() < began + seconds, self.logs()
            time.sleep(0.01)
        return time.monotonic() - began

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def log(self, name: str) -> str:
        path = self.folder / name / "log.txt"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        codes = {name: self.exit_code(name) for name in self.processes}
        return f"{codes}\n" + "\n".join(f"--- {name}\n{self.log(name)[-2500:]}" for name in ("server", *self.devices))

    def close(self) -> None:
        for process in self.processes.values():
            if process.exitcode is None:
                process.kill()  # also what is stopped
            process.join()
        for link in self.links.values():
            link.close()
        if self.disk is not None:
            self.disk.close()

    def _run(self, name: str, arguments: list[str], fault: Fault | None, most: int) -> None:
        namespace = self.disk.namespace if self.disk is not None and name == "server" else ""
        args = (str(self.folder / name), arguments, fault, most, namespace)
        process = _CONTEXT.Process(target=party, args=args, name=name, daemon=True)
        process.start()
        self.processes[name] = process


@contextlib.contextmanager
def town(*args: Any, **names: Any) -> Iterator[Town]:
    made = Town(*args, **names)
    try:
        yield made
    finally:
        made.close()
