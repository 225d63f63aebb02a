"""Whether a ledger may be begun or continued: the same run, the same records, nothing forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dpzv.errors import PrivacyRefused
from dpzv.privacy.coverage import PlanRequest, normalised
from dpzv.privacy.plan import PrivacyPlan, request_of
from dpzv.terms import NoiseSourceName

__all__ = ["asked_of", "refuse_forgetful", "refuse_old_copy", "refuse_other_parents", "refuse_other_run"]


def asked_of(plan: PlanRequest, data_fingerprint: str, noise_source: str) -> dict[str, Any]:
    """What a run was asked for, by name; what its head rule and starts do not look at is left out."""
    asked = msgspec.structs.asdict(normalised(request_of(plan)))
    return {"data": data_fingerprint, "noise.source": noise_source} | asked


def refuse_other_run(path: Path, *, began: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to continue a run under anything else than it began with."""
    for name, value in began.items():
        if value != now[name]:
            raise PrivacyRefused(
                f"the run of ledger {path} began with {name} = {value}, got {now[name]}; "
                "resume with the settings and data the run began with, or start a new run."
            )


def refuse_old_copy(path: Path, *, releases: int, at_least: int) -> None:
    """Refuse a ledger that knows of fewer releases than a checkpoint does."""
    if releases < at_least:
        raise PrivacyRefused(
            f"the ledger {path} holds {releases} releases but the checkpoint knows of {at_least}; "
            "the ledger is an old copy, so the run cannot go on: start a new run."
        )


def refuse_forgetful(noise_source: NoiseSourceName, durable: bool) -> None:
    """Refuse secret noise without a durable ledger: a release that is forgotten would be drawn again."""
    if noise_source != "seeded" and not durable:
        raise PrivacyRefused("secret noise needs a durable ledger, got durable=False; set durable=True.")


def refuse_other_parents(plan: PrivacyPlan, data_fingerprint: str) -> None:
    """Refuse earlier runs over other records."""
    for parent in plan.parents:
        if parent.data_fingerprint != data_fingerprint:
            raise PrivacyRefused(
                f"the earlier run {parent.run_id[:8]} is over other records than this one, so their budgets do not "
                "add up; leave it out."
            )
