"""Three companies and a label holder train together as four processes, then predict; everything on this machine.

    python run.py [--small] [--folder FOLDER]

Each party gets a folder with what it would have on a machine of its own: keys, records, its TOML and the agreed run.
Exits with 0 only if every process did what it should. `docs/howto/deploy.md` does the same between machines.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path
from typing import Any

import make_data
import pandas as pd
import tomli_w
from make_data import NAMES
from sklearn.metrics import roc_auc_score

HERE = Path(__file__).parent
DPZV = (sys.executable, "-m", "dpzv")
LABELLED, NEW = make_data.ALL - 1000, 1000  # flights
SMALL = {  # so short that it learns next to nothing; for a test
    "train": {"rounds": 20, "B": 512, "eval_every": 10},
    "head": {"steps": 40, "batch": 512, "refit_steps": 20},
}
PATIENCE = 600.0  # seconds for the whole training
EVERY = 10.0  # seconds between two lines of progress; each line starts a process to ask for the status
MARK = ".three_companies"  # a folder with this file was made by this example and may be replaced


class Failed(Exception):
    """Something did not go as it should; the text says what."""


class Processes:
    """The processes that this example starts; it touches no others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Run `dpzv ARGUMENTS` for party `name` in its folder, and write its log there."""
        with self.log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*DPZV, *arguments], cwd=self._folder / name, stdout=subprocess.DEVNULL, stderr=log
            )

    def log(self, name: str) -> Path:
        """The path of a party's log, which has one JSON object a line."""
        return self._folder / name / "log.jsonl"

    def ended(self, name: str) -> bool:
        """Whether a party's process has ended; raises `Failed` if its exit code is not 0."""
        code = self._running[name].poll()
        if code:
            lines = self.log(name).read_text(errors="replace").splitlines()[-8:]
            raise Failed("\n".join([f"{name} ended with exit code {code}:", *lines]))
        return code is not None

    def stop(self, name: str) -> None:
        """Send SIGTERM to a party, which must then end by itself with exit code 0."""
        self._running[name].send_signal(signal.SIGTERM)
        try:
            self._running[name].wait(30)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} did not stop within 30 s of SIGTERM.") from None
        self.ended(name)

    def close(self) -> None:
        """End every process that still runs."""
        left = [process for process in self._running.values() if process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    """Run the whole example and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="4,000 flights and 20 rounds: half a minute")
    parser.add_argument("--folder", type=Path, default=HERE.parents[1] / "runs" / "three_companies")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM ends the processes, too
    folder = chosen.folder.resolve()
    processes = Processes(folder)
    began = time.monotonic()
    try:
        truth = prepare(folder, chosen.small)
        train(processes, folder)
        predict(folder, truth)
        for name in NAMES:
            processes.stop(name)
    except Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        processes.close()
    print(f"\nAll processes ended well, after {time.monotonic() - began:.0f} s. Everything is in {folder}.")
    return 0


def prepare(folder: Path, small: bool) -> pd.Series:
    """Make a folder with its files for each party; return how the new flights arrived."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise Failed(f"{folder} is not empty and not from an earlier run of this example; choose another --folder.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    labelled, new = (4000, 400) if small else (LABELLED, NEW)
    print(f"records: {labelled} flights at four parties, each lacking some; {new} more that have not landed yet")
    truth = make_data.write(folder, labelled, new)
    print("keys: an authority, and a certificate for each party")
    dpzv(folder, "keys", "init", "--out", "authority")
    agreed = tomllib.loads((HERE / "run.toml").read_text())
    for section, values in SMALL.items() if small else ():
        agreed[section] |= values
    ports = {":7443": f":{free_port()}", ":7444": f":{free_port()}"}
    for name in ("server", *NAMES):
        dpzv(folder, "keys", "issue", name, "--ca", "authority", "--out", f"{name}/keys")
        own = (HERE / f"{name}.toml").read_text()
        for written, free in ports.items():
            own = own.replace(written, free)
        (folder / name / f"{name}.toml").write_text(own)
        (folder / name / "run.toml").write_text(tomli_w.dumps(agreed))
    return truth


def train(processes: Processes, folder: Path) -> None:
    """Run server and devices as processes until the server has finished."""
    began = shown = time.monotonic()
    for name in NAMES:
        processes.start(name, "device", f"{name}.toml", "--stay")
    processes.start("server", "server", "server.toml")
    print("training:")
    while not processes.ended("server"):
        for name in NAMES:
            if processes.ended(name):
                raise Failed(f"{name} left before the training was over.")
        now = time.monotonic()
        if now - began > PATIENCE:
            raise Failed(f"the training took longer than {PATIENCE:.0f} s.")
        if now - shown > EVERY:
            print(f"  {now - began:4.0f} s  {progress(folder)}", flush=True)
            shown = time.monotonic()
        time.sleep(0.2)
    summary = json.loads((folder / "server" / "run" / "summary.json").read_text())
    megabytes = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
    print(
        f"\ntrained: {summary['rounds']} rounds in {summary['seconds']:.0f} s, {megabytes:.0f} MB exchanged\n"
        f"  test AUC {summary['test_auc']:.4f} with the head that stays at the server,\n"
        f"           {summary['private_head']['test_auc']:.4f} with the private head, which may leave it\n"
    )
    for statement in summary["statement"].splitlines():
        print(textwrap.fill(statement, 110, subsequent_indent=" " * 15))


def progress(folder: Path) -> str:
    """One line about how far the run is, from `dpzv server --status`."""
    if not (folder / "server" / "run" / "status.json").exists():
        return "the parties start"
    now: dict[str, Any] = json.loads(dpzv(folder / "server", "server", "server.toml", "--status", "--json"))
    devices = ", ".join(f"{d['name']} {d['releases'] if d['here'] else 'away'}" for d in now["devices"])
    megabytes = (now["bytes_up"] + now["bytes_down"]) / 1e6
    return f"{now['stage']}: round {now['round']} of {now['rounds']} ({devices}), {megabytes:.0f} MB"


def predict(folder: Path, truth: pd.Series) -> None:
    """Predict the new flights with the devices that stayed online, and compare with how they arrived."""
    server = folder / "server"
    print("\n" + dpzv(server, "predict", "server.toml", "--ids", "new.txt", "--out", "predictions.csv").strip())
    found = pd.read_csv(server / "predictions.csv", index_col="id")["prediction"]
    if list(found.index) != list(truth.index) or not found.between(0, 1).all():
        raise Failed("predictions.csv must have a probability for each id of new.txt, in their order; it does not.")
    surest = truth[found.sort_values().index[-len(found) // 10 :]]
    print(
        f"  AUC {roc_auc_score(truth, found):.3f} on these flights; of the tenth with the highest predictions "
        f"{surest.mean():.0%} were late, of all flights {truth.mean():.0%}"
    )


def dpzv(folder: Path, *arguments: str) -> str:
    """Run `dpzv ARGUMENTS` in `folder` and return what it prints; raises `Failed` if it fails."""
    done = subprocess.run([*DPZV, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"dpzv {' '.join(arguments)} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def free_port() -> int:
    """A port of the loopback interface on which nobody listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
