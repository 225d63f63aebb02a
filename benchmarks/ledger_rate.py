"""The ledger alone: releases per second against the disk's own pace, and the time to rebuild a million releases.

Batches are random, with B = 512 out of D = 60,000 records. Seven devices wait at once, each for its own release to be
on the disk. Slices of this and of plain ``fdatasync`` alternate on the same disk, so that a noisy machine disturbs both
alike.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bar import Row
from dpzv.privacy.events import PlannedRelease
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.plan import PlanRequest, PrivacyPlan
from dpzv.privacy.planning import make_plan

__all__ = ["rows"]

B, D, M = 512, 60_000, 7
RELEASES = 1_000_000
SLICES, SECONDS = 6, 1.0
_FRAME = hashlib.sha256(b"frame").digest()
_POOL = [np.random.default_rng(i).choice(D, B, replace=False) for i in range(2048)]


def ids_of(m: int, position: int) -> NDArray[np.int64]:
    """A random batch that follows from its place in the schedule."""
    return _POOL[(position * M + m) % len(_POOL)]


def _plan() -> PrivacyPlan:
    return make_plan(
        PlanRequest(
            epsilon=1.0,
            delta_dp=1e-5,
            accounting="exact",
            neighbours="replace-one",
            protects="records",
            C=1.0,
            B=B,
            D=D,
            M=M,
            T=2 * RELEASES,
            participations=20_000,
            min_batch=64,
            head_rule="frozen",
            starts=("random", "random", "random", "random", "random", "random", "random"),
            start_share=0.0,
            method="dpzv",
        )
    )


class _Devices:
    """Devices whose rounds enter one after the other and wait for the disk together, as they do at a server."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._turn = ledger, threading.Lock()
        self.released = 0

    def run(self, m: int, until: float) -> None:
        """Release for device `m` until the clock says `until`."""
        ledger, plan = self._ledger, self._ledger.plan
        while time.perf_counter() < until:
            with self._turn:
                t = self.released
                event = PlannedRelease(t=t, m=m, position=t // M, B=B, C=plan.C, sigma_dp=plan.sigma_dp)
                ledger.admit(event)
                ledger.contributes(event)
                ledger.submit(event, np.array([0.25 * t]), _FRAME)
                self.released += 1
            ledger.wait(t)


def _syncs(file: int, seconds: float) -> float:
    """How many fdatasyncs of one page each the disk does in a second."""
    page, count, start = os.urandom(4096), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        os.pwrite(file, page, 4096 * (count % 1024))
        os.fdatasync(file)
        count += 1
    return count / (time.perf_counter() - start)


def _rate(folder: Path, plan: PrivacyPlan) -> float:
    """Releases per fdatasync."""
    file = os.open(folder / "page", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, bytes(4096 * 1024), 0)
    syncs, releases = 0.0, 0.0
    with Ledger.create(
        folder / "ledger.sqlite", plan=plan, data_fingerprint="", noise_source="exact", ids_of=ids_of
    ) as ledger:
        devices = _Devices(ledger)
        for _ in range(SLICES):
            syncs += _syncs(file, SECONDS)
            before, start = devices.released, time.perf_counter()
            threads = [threading.Thread(target=devices.run, args=(m, start + SECONDS)) for m in range(M)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            releases += (devices.released - before) / (time.perf_counter() - start)
    os.close(file)
    return releases / syncs


def _rebuild_seconds(path: Path, plan: PrivacyPlan) -> float:
    """Seconds to open a ledger of a million releases."""
    with Ledger.create(path, plan=plan, data_fingerprint="", noise_source="seeded", ids_of=ids_of) as ledger:
        for t in range(RELEASES):
            event = PlannedRelease(t=t, m=t % M, position=t // M, B=B, C=plan.C, sigma_dp=plan.sigma_dp)
            ledger.submit(event, np.array([0.25 * t]), _FRAME)
            if t % 100_000 == 0:
                ledger.flush()
        spent = ledger.unit_mu_squared
    start = time.perf_counter()
    with Ledger.open(path, plan=plan, data_fingerprint="", noise_source="seeded", ids_of=ids_of) as ledger:
        seconds = time.perf_counter() - start
        if (ledger.releases, ledger.unit_mu_squared) != (RELEASES, spent):
            raise AssertionError("the rebuilt ledger differs from the one that was written")
    return seconds


def rows() -> list[Row]:
    """Two rows: releases per fdatasync, and the seconds that a rebuild takes."""
    plan = _plan()
    with tempfile.TemporaryDirectory(dir=".") as name:
        return [
            Row("ledger: releases over fdatasyncs, 7 devices wait", _rate(Path(name), plan), 0.5, most=False),
            Row("ledger: seconds to rebuild a million", _rebuild_seconds(Path(name) / "m.sqlite", plan), 30.0),
        ]
