"""A process that writes to a ledger until something ends it: ``python -m tests.privacy.ledger_child WHAT PATH``."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.plans import asked

from dpzv.errors import DiskError
from dpzv.privacy.events import PlannedRelease
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.ledger_checks import Marker
from dpzv.privacy.planning import make_plan
from dpzv.terms import NoiseSourceName

ROOT = Path(__file__).parents[2]
D, B, T = 500, 50, 1_000_000
PLAN = make_plan(asked(B=B, D=D, T=T, participations=100_000))


def child(what: str, path: Path) -> dict[str, Any]:
    """How to start it: arguments of `subprocess`."""
    return {"args": [sys.executable, "-m", "tests.privacy.ledger_child", what, str(path)], "cwd": ROOT, "text": True}


def ids_of(m: int, position: int) -> NDArray[np.int64]:
    return np.arange(position * B, (position + 1) * B) % D


def frame(t: int) -> bytes:
    return hashlib.sha256(str(t).encode()).digest()


def create(path: Path, *, durable: bool) -> Ledger:
    source: NoiseSourceName = "exact" if durable else "seeded"
    return Ledger.create(path, plan=PLAN, data_fingerprint="d", noise_source=source, ids_of=ids_of)


def reopen(path: Path, *, durable: bool, at_least: int = 0) -> Ledger:
    return Ledger.open(
        path,
        plan=PLAN,
        data_fingerprint="d",
        noise_source="exact" if durable else "seeded",
        ids_of=ids_of,
        at_least=at_least,
    )


def write(ledger: Ledger, t: int) -> float:
    """Release round `t` with a value that would differ if it were drawn again."""
    Delta = int.from_bytes(os.urandom(6), "big") / 2**40
    event = PlannedRelease(t=t, m=0, position=t, B=B, C=PLAN.C, sigma_dp=PLAN.sigma_dp)
    ledger.submit(event, np.array([Delta]), frame(t))
    ledger.wait(t)
    return Delta


def acknowledge_until_killed(path: Path) -> None:
    ledger = reopen(path, durable=True) if path.exists() else create(path, durable=True)
    for t in range(ledger.last_t + 1, T):
        os.write(1, f"{t} {write(ledger, t).hex()}\n".encode())


def flush_at_20_and_end_at_30(path: Path) -> None:
    ledger = create(path, durable=False)
    for t in range(30):
        write(ledger, t)
        if t == 19:
            ledger.flush()
    os._exit(9)


def grow_to_the_limit(path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = create(path, durable=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    written = 0
    try:
        for t in range(T):
            write(ledger, t)
            written += 1
    except DiskError as error:
        os.write(1, f"{written} {ledger.releases} {error}".encode())
        os._exit(error.exit_code)


def die_at_the_note(path: Path, *, after: bool) -> None:
    """Die when the note outside the folder is written for the first time, before it is there or after."""
    write_note = Marker.write

    def killed(self: Marker, releases: int) -> None:
        if after:
            write_note(self, releases)
        os.kill(os.getpid(), signal.SIGKILL)

    Marker.write = killed  # type: ignore[method-assign]
    reopen(path, durable=True) if path.exists() else create(path, durable=True)


if __name__ == "__main__":
    {
        "acknowledge": acknowledge_until_killed,
        "flush": flush_at_20_and_end_at_30,
        "grow": grow_to_the_limit,
        "die before the note": partial(die_at_the_note, after=False),
        "die after the note": partial(die_at_the_note, after=True),
    }[sys.argv[1]](Path(sys.argv[2]))
