"""What a run is: written into its ledger at the beginning, and compared whenever the ledger is opened again.

A claim holds for one schedule, one plan and one data set. If, say, the seed changed in the middle of a run, its batches
would hold other records than those that the ledger charges.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from dpzv.errors import PrivacyRefused
from dpzv.privacy.plan import ParentRun, PlanRequest, request_of

__all__ = ["changes", "refuse_other_request", "refuse_other_settings"]

_REMEDY = "resume with the settings and data the run began with, or start a new run"


def changes(began: str, now: str) -> str:
    """The settings in which two TOML texts differ, in words (``train.seed = 0, got 1``); empty if they say the same."""
    return _differences(_settings(began), _settings(now))


def refuse_other_settings(path: Path, began: str, now: str) -> None:
    """Refuse to go on with the ledger at `path` if the settings it is bound to have changed."""
    _refuse(path, changes(began, now))


def refuse_other_request(path: Path, began: tuple[PlanRequest, str, str], now: tuple[PlanRequest, str, str]) -> None:
    """Refuse a ledger whose plan was made from another request, other data or another source of noise than now."""
    _refuse(path, _differences(_asked(*began), _asked(*now)))


def _refuse(path: Path, changed: str) -> None:
    if changed:
        raise PrivacyRefused(f"the run of ledger {path} began with {changed}; {_REMEDY}.")


def _asked(plan: PlanRequest, data_fingerprint: str, noise_source: str) -> dict[str, Any]:
    """What a run was asked for, by name; settings that its head rule and starts do not use are 0 (`request_of`)."""
    return {"data": data_fingerprint, "noise.source": noise_source} | asdict(request_of(plan))


def _settings(text: str) -> dict[str, Any]:
    """Every ``section.key`` of a TOML text with its value."""
    found: dict[str, Any] = {}
    for section, value in msgspec.toml.decode(text).items():
        keys = value if isinstance(value, dict) else {}
        found |= {f"{section}.{key}": inner for key, inner in keys.items()} or {section: value}
    return found


def _differences(began: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    pairs = {name: (began.get(name, "nothing"), now.get(name, "nothing")) for name in {**began, **now}}
    return " and ".join(f"{name} = {_shown(a)}, got {_shown(b)}" for name, (a, b) in pairs.items() if a != b)


def _shown(value: Any) -> Any:
    """A value for a message; an earlier run is shown by the beginning of its name."""
    earlier = isinstance(value, tuple) and all(isinstance(item, ParentRun) for item in value)
    return ", ".join(run.run_id[:8] for run in value) or "nothing" if earlier else value
