"""The ledger: the only gate to a release, and the only memory of what was released.

Order of a round: `stored` (a repeat is answered from the ledger), `admit`, `past_cap` (whose terms become 0),
then the sum and the noise, then `write`, and only then may the value be sent. Rows are never removed.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.errors import DpzvError, PrivacyRefused
from dpzv.privacy import store
from dpzv.privacy.counters import CapCounters
from dpzv.privacy.events import ReleaseEvent, StartEvent
from dpzv.privacy.plan import PrivacyPlan, plan_from_json, plan_to_json, request_of, start_event
from dpzv.privacy.store import closed_on_error, plain_errors
from dpzv.terms import NoiseSourceName

__all__ = ["BatchIds", "Ledger"]

BatchIds = Callable[[int, int], NDArray[np.int64]]
"""``ids_of(m, position)``: the record ids, all different, of one batch of device `m`'s public schedule."""

_Row = tuple[int, int, int, int, float, str, bytes]


class Ledger:
    """Releases of one run on disk, and every record's spent share of its cap in memory.

    `plan` is the plan the run began with: a resumed run goes on with that one. `run_id` is random, `counter`
    is the number of times the ledger was opened, `last_t` the newest round (-1: none), `releases` the count.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, ids_of: BatchIds, durable: bool) -> None:
        """Use `create` or `open` instead."""
        self._path, self._connection, self._ids_of, self._durable = path, connection, ids_of, durable
        meta: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta"))
        self.plan = plan_from_json(meta["plan"])
        self.run_id = meta["run_id"]
        self.counter = int(meta["counter"])
        self.data_fingerprint = meta["data_fingerprint"]
        self.noise_source = meta["noise_source"]
        self.last_t = -1
        self.releases = 0
        self._buffer: dict[int, _Row] = {}
        self._counters = CapCounters(D=self.plan.D, cap=self.plan.cap)
        rows = connection.execute("SELECT t, m, position, B, sigma_dp FROM releases ORDER BY t")
        for t, m, position, B, sigma_dp in rows:
            self._count(ReleaseEvent(t=t, m=m, position=position, B=B, C=self.plan.C, sigma_dp=sigma_dp))

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        plan: PrivacyPlan,
        data_fingerprint: str,
        noise_source: NoiseSourceName,
        ids_of: BatchIds,
        durable: bool,
    ) -> Self:
        """A new ledger at `path`, which must not exist.

        With `durable` every release is on the disk when `write` returns; without, for simulated noise only,
        rows wait in memory for `flush` and survive the process but not the machine.
        """
        _refuse_forgetful(noise_source, durable)
        meta = {
            "run_id": secrets.token_hex(16),
            "counter": "1",
            "plan": plan_to_json(plan),
            "data_fingerprint": data_fingerprint,
            "noise_source": noise_source,
        }
        with plain_errors(path):
            connection = store.create(path, meta, durable=durable)
            with closed_on_error(connection):
                return cls(path, connection, ids_of, durable)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        plan: PrivacyPlan,
        data_fingerprint: str,
        noise_source: NoiseSourceName,
        ids_of: BatchIds,
        durable: bool,
        at_least: int = 0,
    ) -> Self:
        """The ledger of an interrupted run, with its counters rebuilt from the rows.

        Refused: a missing or damaged file, another request, data set or noise source than the run began with,
        or fewer than `at_least` releases (those a checkpoint knows of: the ledger is then an old copy).
        """
        _refuse_forgetful(noise_source, durable)
        with plain_errors(path):
            connection = store.reopen(path, durable=durable)
            with closed_on_error(connection):
                ledger = cls(path, connection, ids_of, durable)
                ledger._refuse_other_run(plan, data_fingerprint, noise_source, at_least)
                ledger.counter += 1
                connection.execute("UPDATE meta SET value = ? WHERE key = 'counter'", (str(ledger.counter),))
                return ledger

    @property
    def unit_mu_squared(self) -> float:
        """The largest sum of (C / (B sigma_dp))^2 of any record, rounded up; 0 where the plan has no cap."""
        return self._counters.largest

    def stored(self, t: int, frame_sha256: bytes) -> float | None:
        """The Delta already released for round `t`, or None; noise is never drawn twice for one round.

        Refused when the repeated frame is not the one that was answered.
        """
        if t > self.last_t:
            return None
        row: tuple[str, bytes] | None
        if t in self._buffer:
            row = self._buffer[t][5:]
        else:
            with plain_errors(self._path):
                query = "SELECT Delta, frame_sha256 FROM releases WHERE t = ?"
                row = self._connection.execute(query, (t,)).fetchone()
        if row is None:
            return None
        if row[1] != frame_sha256:
            raise PrivacyRefused(
                f"round {t} was released for another frame than the one sent now; "
                "a repeated round must repeat its frame: resume from the run's own checkpoint."
            )
        return float.fromhex(row[0])

    def past_cap(self, event: ReleaseEvent) -> NDArray[np.bool_]:
        """Which records of the event's batch, in schedule order, are past their cap and must contribute 0."""
        return self._counters.past(self._ids_of(event.m, event.position), self._counters.charge_of(event))

    def admit(self, event: ReleaseEvent) -> None:
        """Refuse an event that the plan does not allow; nothing is counted yet, and no value is looked at."""
        plan = self.plan
        if self.releases >= plan.T:
            raise PrivacyRefused(
                f"the plan allows {plan.T} releases and all are made; plan a new run with more rounds."
            )
        if event.t <= self.last_t:
            raise PrivacyRefused(
                f"expected a round after {self.last_t}, got {event.t}; a round is released once, in order."
            )
        least = plan.min_batch if math.isfinite(plan.epsilon) else 1
        size = len(self._ids_of(event.m, event.position))
        if not (least <= event.B == size <= plan.D and event.C == plan.C and event.sigma_dp == plan.sigma_dp):
            raise PrivacyRefused(
                f"expected a batch of {size} (at least {least}) with C={plan.C:g} and "
                f"sigma_dp={plan.sigma_dp:g} as planned, got B={event.B}, C={event.C:g}, "
                f"sigma_dp={event.sigma_dp:g}; release what was planned."
            )
        self._counters.charge_of(event)

    def write(self, event: ReleaseEvent, Delta: float, frame_sha256: bytes) -> None:
        """Store a release and charge its records; the value may be sent when this returns."""
        self.admit(event)
        row = (event.t, event.m, event.position, event.B, event.sigma_dp, Delta.hex(), frame_sha256)
        if self._durable:
            self._insert([row])
        else:
            self._buffer[event.t] = row
        self._count(event)

    def write_start(self, event: StartEvent) -> None:
        """Store that a device made its dp-pca start; again with the same noise changes nothing."""
        planned = start_event(self.plan, event.m)
        if event.noise_multiplier != planned.noise_multiplier:
            raise PrivacyRefused(
                f"expected the start of device {event.m} with noise {planned.noise_multiplier:g} as planned, "
                f"got {event.noise_multiplier:g}; make the start as planned."
            )
        with plain_errors(self._path):
            statement = "INSERT OR IGNORE INTO starts VALUES (?, ?)"
            self._connection.execute(statement, (event.m, event.noise_multiplier))

    def flush(self) -> None:
        """Commit the rows that wait in memory; call it before every checkpoint."""
        self._insert(list(self._buffer.values()))
        self._buffer.clear()

    def close(self) -> None:
        """Commit what waits and let the file go."""
        try:
            self.flush()
        finally:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # an error on its way out must not be hidden by the same disk failing again
        with suppress(DpzvError) if error is not None else nullcontext():
            self.close()

    def _insert(self, rows: list[_Row]) -> None:
        if not rows:
            return
        with plain_errors(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany("INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _count(self, event: ReleaseEvent) -> None:
        self._counters.add(self._ids_of(event.m, event.position), self._counters.charge_of(event))
        self.last_t = event.t
        self.releases += 1

    def _refuse_other_run(
        self, plan: PrivacyPlan, data_fingerprint: str, noise_source: NoiseSourceName, at_least: int
    ) -> None:
        began = {"data": self.data_fingerprint, "noise.source": self.noise_source} | _asked(self.plan)
        now = {"data": data_fingerprint, "noise.source": noise_source} | _asked(plan)
        for name, value in began.items():
            if value != now[name]:
                raise PrivacyRefused(
                    f"the run of ledger {self._path} began with {name} = {value}, got {now[name]}; "
                    "resume with the settings and data the run began with, or start a new run."
                )
        if self.releases < at_least:
            raise PrivacyRefused(
                f"the ledger {self._path} holds {self.releases} releases but the checkpoint knows of "
                f"{at_least}; the ledger is an old copy, so the run cannot go on: start a new run."
            )


def _refuse_forgetful(noise_source: NoiseSourceName, durable: bool) -> None:
    if noise_source != "seeded" and not durable:
        raise PrivacyRefused("secret noise needs a durable ledger, got durable=False; set durable=True.")


def _asked(plan: PrivacyPlan) -> dict[str, Any]:
    return msgspec.structs.asdict(request_of(plan))
