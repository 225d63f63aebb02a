"""Earlier runs as parents of a new one: which there are, which records they share with it, and what they cost.

The claim is about the worst record. So an earlier run costs in full if it shares any record with the new one, or if
nobody can tell whether it does. It costs nothing only if it is known to share none.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dpzv.privacy import ledger_file
from dpzv.privacy.events import Event, Releases
from dpzv.privacy.head_steps import HeadSteps
from dpzv.privacy.ledger_checks import Marker
from dpzv.privacy.plan import ParentRun, PrivacyPlan
from dpzv.privacy.record_names import RecordNames
from dpzv.privacy.statement import LedgerView, largest_sum, read_ledger, read_ledgers

__all__ = ["end", "parents_of"]

# more than the rounding of the few float64 operations that a sum of squares takes
_ROUND_UP = 1 + 2.0**-40


def parents_of(paths: Sequence[Path], names: RecordNames, begun: Path | None = None) -> tuple[ParentRun, ...]:
    """The runs at `paths` and their own parents, each once, for the plan of a run that trains on the records `names`.

    A path is a run folder, a ledger file, or a folder with runs anywhere below it, such as that of `dpzv tune`. Records
    of a grandparent are known only if it is named itself. A run that was `begun` in this folder keeps its parents as
    they were then: an earlier run that was ended since may cost less by now, but not for this run.
    """
    found: dict[str, ParentRun] = {}
    for path, view in read_ledgers(paths):
        for parent in view.plan.parents:
            found.setdefault(parent.run_id, replace(parent, shared=None))
        found[view.run_id] = _parent(view, names.shared_with(_names(path, view.plan.D)))
    now = tuple(found[name] for name in sorted(found))
    if begun is not None and (begun / "ledger.sqlite").is_file():
        began = read_ledger(begun).plan.parents
        if [parent.run_id for parent in began] == sorted(found):
            return began
    return now


def end(path: Path) -> LedgerView:
    """End the run at `path` for good, so that later runs pay for what it used only; it must not be running.

    An old copy, which knows of less than was used, is refused where this machine can tell.
    """
    file, view = path / "ledger.sqlite" if path.is_dir() else path, read_ledger(path)
    with ledger_file.plain_errors(file), ExitStack() as stack:
        owned = ledger_file.reopen(file, durable=True)
        stack.callback(owned.close)
        if view.noise_source == "exact":
            stack.callback(Marker(file, view.run_id, owned.connection, view.releases).close)
        ledger_file.note(owned.connection, ledger_file.ENDED)
    return read_ledger(file)


def _parent(view: LedgerView, shared: int | None) -> ParentRun:
    plan = view.plan
    accounted = not plan.spends or (math.isfinite(plan.claimed_epsilon) and plan.accounting == "exact")
    family = plan.charges if accounted and _got_the_rest(plan) else {}
    return ParentRun(
        run_id=view.run_id,
        noise_source=view.noise_source,
        events=plan.claim if accounted else (),
        used=tuple(_used(event, view) for event in plan.claim) if accounted and view.ended else None,
        shared=shared,
        accounted=accounted,
        protects=plan.protects,
        inherited=tuple(event for events in family.values() for event in events),
        covers=tuple(family),
    )


def _got_the_rest(plan: PrivacyPlan) -> bool:
    """Whether the caps of a plan depend on how far an earlier run came: they were what that run had left."""
    if plan.charges_in_full or not plan.spends:
        return False
    return any(
        parent.inherited or plan.charges[parent.run_id] != parent.events
        for parent in plan.parents
        if parent.run_id in plan.charges
    )


def _used(event: Event, view: LedgerView) -> Event:
    """What happened of a planned event until the run was ended; it is the whole event where the proof allows no less.

    Secretly sampled head steps count in full: a pair that is not Gaussian must not be traded for another (Proof 3).
    """
    if isinstance(event, Releases):
        return replace(event, cap=min(event.cap, largest_sum(view) * _ROUND_UP))
    if type(event) is HeadSteps and event.q >= 1:
        return replace(event, steps=view.head_steps)
    return event


def _names(path: Path, D: int) -> RecordNames:
    """The names of the D records of a run."""

    def read(connection: sqlite3.Connection) -> RecordNames:
        keys = (ledger_file.NAMES_KEY, ledger_file.NAMES)
        kept: dict[str, Any] = dict(connection.execute("SELECT key, value FROM meta WHERE key IN (?, ?)", keys))
        return RecordNames(key=kept[keys[0]], names=kept[keys[1]], count=D)

    return ledger_file.snapshot(path, read)
