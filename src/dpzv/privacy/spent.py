"""What was spent, from ledgers alone: one run or several over the same records, alive or ended."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.events import Event, unit_mu, unpacked
from dpzv.privacy.head_steps import steps_of
from dpzv.privacy.ledger_file import snapshot
from dpzv.privacy.plan import ParentRun, PrivacyPlan, epsilon_spent
from dpzv.privacy.statement import RunSpent, joint_statement
from dpzv.privacy.wording import Statement
from dpzv.terms import NoiseSourceName

__all__ = ["LedgerView", "parents_of", "read_ledger", "spent"]


class LedgerView(Struct, frozen=True, kw_only=True):
    """One moment of a ledger. `turns` counts the releases of each device, by its number."""

    run_id: str
    data_fingerprint: str
    noise_source: NoiseSourceName
    plan: PrivacyPlan
    releases: int
    head_steps: int
    turns: dict[int, int]


def read_ledger(path: Path) -> LedgerView:
    """The ledger file `path`, or the one in the run folder `path`; the run may be alive."""
    return snapshot(path / "ledger.sqlite" if path.is_dir() else path, _view)


def _view(connection: sqlite3.Connection) -> LedgerView:
    meta: dict[str, Any] = dict(connection.execute("SELECT key, value FROM meta"))
    events = connection.execute("SELECT event FROM events")
    turns: dict[int, int] = dict(connection.execute("SELECT m, COUNT(*) FROM releases GROUP BY m"))
    return LedgerView(
        run_id=meta["run_id"],
        data_fingerprint=meta["data_fingerprint"],
        noise_source="exact" if meta["noise_source"] == "exact" else "seeded",
        plan=unpacked(meta["plan"], PrivacyPlan),
        releases=sum(turns.values()),
        head_steps=steps_of([unpacked(packed, Event) for (packed,) in events]),
        turns=turns,
    )


def spent(paths: Sequence[Path]) -> Statement:
    """The statement of the runs whose ledgers (or run folders) are `paths`, added up.

    Formal guarantee: the runs and their parents, each at its caps, are jointly (epsilon, delta_dp)-DP. Refused when
    they are over different records, or one is given twice.
    """
    views = [read_ledger(path) for path in paths]
    if not views:
        raise ConfigError("expected at least one run folder, got none; name the runs to add up.")
    _refuse_strangers(views)
    return joint_statement([_run(view) for view in views])


def parents_of(paths: Sequence[Path]) -> tuple[ParentRun, ...]:
    """The runs at `paths` and their own parents, each once, for the `parents` of a new plan's request."""
    views = [read_ledger(path) for path in paths]
    _refuse_strangers(views)
    found: dict[str, ParentRun] = {}
    for view in views:
        if math.isinf(view.plan.claimed_epsilon) or view.plan.accounting == "paper":
            raise PrivacyRefused(
                f"the run {view.run_id[:8]} has no exact account, so nothing can be planned beside it; "
                "use other records or accept that no guarantee holds."
            )
        for parent in view.plan.parents:
            found.setdefault(parent.run_id, parent)
        found[view.run_id] = ParentRun(
            run_id=view.run_id,
            data_fingerprint=view.data_fingerprint,
            noise_source=view.noise_source,
            events=view.plan.claim,
            protects=view.plan.protects,
        )
    return tuple(found[name] for name in sorted(found))


def _refuse_strangers(views: Sequence[LedgerView]) -> None:
    if len({view.data_fingerprint for view in views}) > 1:
        raise PrivacyRefused(
            "runs add up over the same records only, got "
            + ", ".join(f"{view.run_id[:8]} over {view.data_fingerprint[:12]}" for view in views)
            + "; state runs over different records apart."
        )
    if len({view.run_id for view in views}) < len(views):
        raise PrivacyRefused("the same run was given twice (a copied folder is the same run); name each run once.")


def _run(view: LedgerView) -> RunSpent:
    """What happened so far; participations are those of a schedule that walks all records in turn."""
    plan = view.plan
    unit_squared = 0.0
    if view.releases and math.isfinite(plan.cap):
        event = plan.event(t=0, m=0, position=0, B=plan.B)
        most = sum(-(-turns * plan.B // plan.D) for turns in view.turns.values())
        unit_squared = min(plan.cap, most * unit_mu(event) ** 2)
    return RunSpent(
        run_id=view.run_id,
        plan=plan,
        noise_source=view.noise_source,
        releases=view.releases,
        head_steps=view.head_steps,
        epsilon_spent=epsilon_spent(
            plan, releases=view.releases, unit_mu_squared=unit_squared, head_steps=view.head_steps
        ),
    )
