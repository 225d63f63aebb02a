"""The ledger admits every release, and it alone remembers what was released.

A round calls `contributes` (which records count), computes the sum, calls `stored` (a repeat is answered from the
ledger) and `admit`, adds the noise, calls `submit` and `wait`, and only then may the value be sent. What is not a
release (starts, head steps) is stored by `charge` before it happens. Rows are never removed.

Rounds enter one after the other, but may wait for the disk together: `submit` counts a release and queues its row,
`wait` returns when the row is durable, and all rows that wait at the same time share one commit.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.errors import DpzvError, PrivacyRefused
from dpzv.privacy import ledger_file
from dpzv.privacy.caps import CapCounters
from dpzv.privacy.events import Event, PlannedRelease, remember, unpacked
from dpzv.privacy.head_steps import steps_of
from dpzv.privacy.ledger_checks import KEY_BYTES, Marker, Receipts, refuse_other_request, refuse_other_settings
from dpzv.privacy.ledger_file import ReleaseRow, plain_errors
from dpzv.privacy.plan import PlanRequest, PrivacyPlan
from dpzv.privacy.record_names import UNNAMED, RecordNames
from dpzv.terms import NoiseSourceName

__all__ = ["Ledger"]

BatchIds = Callable[[int, int], NDArray[np.int64]]
"""``ids_of(m, position)``: the record ids, all different, of one batch of device `m`'s public schedule."""

_HEARD = "heard from {m}"
"""The name in `meta` of the note that device m has sent embeddings; it is a format."""


class Ledger:
    """The releases and other events of one run on disk, and the spent share of every record's cap in memory.

    `plan` is the plan the run began with: a resumed run goes on with that one. `run_id` is random, `last_t` is the
    newest round (-1: none), `releases` the number of releases, and `charged` are the other events so far, joined.
    `heard` are the devices whose embeddings have reached the server; `receipts` makes what comes with a release.
    With seeded noise the ledger is not `durable`: rows wait in memory for `flush`, and survive the process but not the
    machine. With secret noise `wait` waits for the disk, since a forgotten release would be made again with new noise.
    """

    def __init__(self, path: Path, owned: ledger_file.Owned, ids_of: BatchIds) -> None:
        """Use `create` or `open` instead."""
        self._path, self._owned, self._ids_of = path, owned, ids_of
        self._connection = owned.connection
        meta = ledger_file.meta_of(self._connection)
        self.plan = unpacked(meta["plan"], PrivacyPlan)
        self.run_id = meta["run_id"]
        self.data_fingerprint = meta["data_fingerprint"]
        self.noise_source: NoiseSourceName = meta["noise_source"]
        self._agreed: str = meta["agreed"]
        self.receipts = Receipts(self.run_id, meta["receipt_key"])
        self.durable = self.noise_source != "seeded"
        self.ended = ledger_file.ENDED in meta
        self.releases, self.last_t = ledger_file.reached(self._connection)
        self.heard = {m for m in range(1, self.plan.M + 1) if _HEARD.format(m=m) in meta}
        stored = self._connection.execute("SELECT event FROM events ORDER BY number")
        self.charged: list[Event] = []
        for (packed,) in stored:
            remember(self.charged, unpacked(packed, Event))
        # `_order` guards what is in memory, `_disk` the file; code that needs both locks takes `_disk` first
        self._order, self._disk = threading.RLock(), threading.RLock()
        self._waiting: dict[int, ReleaseRow] = {}
        self._noise = self.plan.clip, self.plan.sigma_dp, self.plan.per_record  # every release is compared with it
        self._admitted: PlannedRelease | None = None
        self._marker: Marker | None = None
        self._counters = CapCounters(D=self.plan.D, cap=self.plan.cap)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        plan: PrivacyPlan,
        data_fingerprint: str,
        noise_source: NoiseSourceName,
        ids_of: BatchIds,
        agreed: str = "",
        names: RecordNames = UNNAMED,
    ) -> Self:
        """A new ledger at `path`, which must not exist.

        `agreed` is the TOML text of all settings that the run is bound to (`runtime/agreement.py`). Later runs compare
        their records with `names`.
        """
        meta: dict[str, str | bytes] = {
            "run_id": secrets.token_hex(16),
            "plan": msgspec.msgpack.encode(plan),
            "data_fingerprint": data_fingerprint,
            "noise_source": noise_source,
            "agreed": agreed,
            "receipt_key": secrets.token_bytes(KEY_BYTES),
            ledger_file.NAMES_KEY: names.key,
            ledger_file.NAMES: names.names,
        }
        with plain_errors(path), ledger_file.create(path, meta, durable=noise_source != "seeded") as owned:
            ledger = cls(path, owned, ids_of)
            ledger._begin_session()
            return ledger

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        plan: PlanRequest,
        data_fingerprint: str,
        noise_source: NoiseSourceName,
        ids_of: BatchIds,
        agreed: str = "",
        at_least: int = 0,
    ) -> Self:
        """The ledger of an interrupted run, with its counters rebuilt from the rows.

        `plan` is what the run is asked for now; the request alone will do, since the stored plan is used. Refused:
        a missing, damaged or copied file; other agreed settings, another request, data set or noise source than the run
        began with; or fewer than `at_least` releases (those a checkpoint knows of: the ledger is then an old copy).
        """
        with plain_errors(path), ledger_file.reopen(path, durable=noise_source != "seeded") as owned:
            ledger = cls(path, owned, ids_of)
            refuse_other_settings(path, ledger._agreed, agreed)
            began = ledger.plan, ledger.data_fingerprint, ledger.noise_source
            refuse_other_request(path, began, (plan, data_fingerprint, noise_source))
            for B, sigma_dp, turns in ledger_file.turns(owned.connection):
                charge = ledger._counters.charge_of(ledger.plan.release(t=0, m=0, position=0, B=B, sigma_dp=sigma_dp))
                ledger._counters.add_many([ids_of(*turn) for turn in turns], charge)
            if ledger.releases < at_least:
                raise PrivacyRefused(
                    f"the ledger {path} holds {ledger.releases} releases but the checkpoint knows of {at_least}; "
                    "the ledger is an old copy, so the run cannot go on: start a new run."
                )
            ledger._begin_session()
            return ledger

    @property
    def unit_mu_squared(self) -> float:
        """The largest sum of (C / (B sigma_dp))^2 of any record, rounded up; 0 where the plan has no cap."""
        with self._order:
            return self._counters.largest

    @property
    def head_steps(self) -> int:
        """The steps of a private head charged so far."""
        return steps_of(self.charged)

    def stored(self, t: int, frame_xxh3: bytes) -> NDArray[np.float64] | None:
        """The Delta already released for round `t`, or None; noise is never drawn twice for one round.

        Refused when the repeated frame is not the one that was answered. A device that found another frame of the same
        hash would only be sent its old answer again, so the hash need not resist such a search.
        """
        if t > self.last_t:
            return None
        rows = self._rows("SELECT Delta, frame_xxh3 FROM releases WHERE t = ?", t)
        if not rows:
            return None
        if rows[0][1] != frame_xxh3:
            raise PrivacyRefused(
                f"round {t} was released for another frame than the one sent now; "
                "a repeated round must repeat its frame: resume from the run's own checkpoint."
            )
        return np.frombuffer(rows[0][0], "<f8")

    def released(self, since: int = 0, most: int = -1) -> Iterator[tuple[int, int, int, NDArray[np.float64], bytes]]:
        """(t, m, position, Delta, frame_xxh3) of the first `most` releases (-1: all) from round `since` on."""
        query = "SELECT t, m, position, Delta, frame_xxh3 FROM releases WHERE t >= ? ORDER BY t LIMIT ?"
        for t, m, position, Delta, frame_xxh3 in self._rows(query, since, most):
            yield t, m, position, np.frombuffer(Delta, "<f8"), frame_xxh3

    def rounds(self, since: int) -> list[tuple[int, int]]:
        """(t, m) of all releases from round `since` on."""
        return self._rows("SELECT t, m FROM releases WHERE t >= ? ORDER BY t", since)

    def knows(self, m: int, position: int, t: int) -> bool:
        """Whether the release of round `t` was for the batch at `position` of device m."""
        return self._rows("SELECT m, position FROM releases WHERE t = ?", t) == [(m, position)]

    def _rows(self, query: str, *values: int) -> list[Any]:
        """The rows that a query finds, once those that wait in memory are in the file."""
        with plain_errors(self._path), self._disk:
            self.flush()
            return self._connection.execute(query, values).fetchall()

    def disown(self) -> None:
        """Note for good that this is an old copy: releases were made that it does not hold. It never opens again."""
        with plain_errors(self._path), self._disk:
            self.flush()
            ledger_file.note(self._connection, ledger_file.OLD_COPY)

    def contributes(self, release: PlannedRelease) -> NDArray[np.bool_] | None:
        """Which records of the release's batch, in schedule order, may contribute; `None` if all of them may.

        The others are past their cap and must contribute 0.
        """
        with self._order:
            charge = self._counters.charge_of(release)
            if charge <= self._counters.room:
                return None
            able = self._counters.can_pay(self._ids_of(release.m, release.position), charge)
        return None if able.all() else able

    def admit(self, release: PlannedRelease) -> None:
        """Refuse a release that the plan does not allow; nothing is counted yet, and no value is looked at."""
        plan, t, last_t = self.plan, release.t, self.last_t
        if self.releases >= plan.T:
            raise PrivacyRefused(
                f"the plan allows {plan.T} releases and all are made; plan a new run with more rounds."
            )
        if self.ended:
            ledger_file.refuse_ended(self._path)
        if t <= last_t:
            raise PrivacyRefused(f"expected a round after {last_t}, got {t}; a round is released once, in order.")
        least = plan.min_batch if math.isfinite(plan.epsilon) else 1
        size = len(self._ids_of(release.m, release.position))
        noise = (release.C, release.sigma_dp, release.per_record)
        if not least <= size == release.B <= plan.D or noise != self._noise:
            raise PrivacyRefused(
                f"expected a batch of {size} (at least {least}) with clip {plan.clip:g} and "
                f"sigma_dp={plan.sigma_dp:g} as planned, got B={release.B}, clip {release.C:g}, "
                f"sigma_dp={release.sigma_dp:g}; release what was planned."
            )
        self._counters.charge_of(release)
        self._admitted = release

    def submit(self, release: PlannedRelease, Delta: NDArray[np.float64], frame_xxh3: bytes) -> None:
        """Charge the records of a release and queue its row; the value may be sent when `wait(release.t)` returns."""
        with self._order:
            if release is not self._admitted:
                self.admit(release)
            self._admitted = None  # an admission is good for one release
            self._counters.add(self._ids_of(release.m, release.position), self._counters.charge_of(release))
            numbers = Delta.astype("<f8").tobytes()
            t, batch = release.t, (release.m, release.position, release.B)
            self._waiting[t] = t, *batch, release.sigma_dp, numbers, frame_xxh3
            self.last_t, self.releases = t, self.releases + 1

    def submit_all(self, like: PlannedRelease, rounds: Sequence[tuple[int, int, int]]) -> None:
        """Do `submit` for all `rounds` (t, m, position) before they are computed; they are like `like` in all else.

        Their rows hold no values.
        """
        if rounds:
            with self._order:
                self.admit(like)
                expected = list(range(like.t, like.t + min(len(rounds), self.plan.T - self.releases)))
                if [t for t, *_ in rounds] != expected:
                    raise PrivacyRefused(f"expected rounds {expected}, got {rounds}; release what was planned.")
                batches, self._admitted = [self._ids_of(m, at) for _, m, at in rounds], None
                self._counters.add_all(batches, self._counters.charge_of(like))
                self._waiting |= {t: (t, m, at, like.B, like.sigma_dp, b"", b"") for t, m, at in rounds}
                self.last_t, self.releases = rounds[-1][0], self.releases + len(rounds)

    def wait(self, t: int) -> None:
        """Return when the row of round `t` is durable; may be called by several threads at once.

        The first one commits every row that is queued by then; the others find theirs committed.
        """
        if self.durable:
            with self._disk:
                if t in self._waiting:
                    self.flush()

    def charge(self, event: Event) -> None:
        """Store an event that is not a release; it may happen when this returns.

        Refused when the plan does not allow it after what was charged before. What is charged and then lost in a crash
        stays charged.
        """
        if not isinstance(event, Event):
            raise PrivacyRefused(f"the ledger can only charge an event, got {event!r}; define what it costs.")
        with plain_errors(self._path), self._disk:
            if event.is_new(self.charged, self.plan.events):
                if self.ended:
                    ledger_file.refuse_ended(self._path)
                self._connection.execute("INSERT INTO events (event) VALUES (?)", (msgspec.msgpack.encode(event),))
                remember(self.charged, event)

    def hear(self, m: int) -> None:
        """Note for good that embeddings of device m have reached the server: its start is in use from now on."""
        with plain_errors(self._path), self._disk:
            ledger_file.note(self._connection, _HEARD.format(m=m))
            self.heard.add(m)

    def keep(self) -> None:
        """Commit the rows that wait in memory, and note outside the folder how many there are; for checkpoints."""
        with self._disk:
            self.flush()
            if self._marker is not None:
                with self._order:
                    stored = self.releases - len(self._waiting)  # another thread may have submitted more meanwhile
                self._marker.write(stored)

    def end(self) -> None:
        """End the run for good: nothing more is admitted or charged, now or after the file is opened again."""
        with plain_errors(self._path), self._disk:
            self.flush()
            ledger_file.note(self._connection, ledger_file.ENDED)
            self.ended = True

    def flush(self) -> None:
        """Commit the rows that wait in memory."""
        with self._disk:
            with self._order:
                rows = list(self._waiting.values())
            if rows:
                with plain_errors(self._path):
                    ledger_file.insert_releases(self._connection, rows)
                with self._order:
                    for row in rows:
                        del self._waiting[row[0]]

    def close(self) -> None:
        """Commit what waits and let the file go."""
        try:
            self.keep()
        finally:
            if self._marker is not None:
                self._marker.close()
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # an error that leaves the block must not be hidden by a second failure of the same disk
        with suppress(DpzvError) if kind is not None else nullcontext():
            self.close()

    def _begin_session(self) -> None:
        """With secret noise, make sure that this is not a copy of the ledger, as far as this machine knows."""
        if self.durable:
            self._marker = Marker(self._path, self.run_id, self._connection, self.releases)
