"""Ledgers of small runs, written without training: 120 records, two devices that take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tests.plans import asked

from dpzv.privacy.head_steps import HeadSteps
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.planning import make_plan
from dpzv.privacy.record_names import UNNAMED, RecordNames
from dpzv.terms import NoiseSourceName

__all__ = ["ASKED", "B", "D", "ids_of", "plan_of", "release", "run"]

D, B = 120, 10
ASKED = asked(delta_dp=1e-5, B=B, D=D, M=2, T=48, participations=4, starts=("random", "random"))


def plan_of(**changes: Any) -> PrivacyPlan:
    return make_plan(msgspec.structs.replace(ASKED, **changes))


def ids_of(m: int, position: int) -> NDArray[np.int64]:
    return np.arange(position * B, (position + 1) * B) % D


def run(
    folder: Path,
    plan: PrivacyPlan,
    names: RecordNames = UNNAMED,
    *,
    rounds: int = 24,
    steps: int = 0,
    data: str = "data-1",
    noise: NoiseSourceName = "exact",
) -> Path:
    """A run folder with a ledger of `rounds` releases and `steps` head steps."""
    folder.mkdir(parents=True)
    common: dict[str, Any] = {"data_fingerprint": data, "noise_source": noise, "ids_of": ids_of, "names": names}
    with Ledger.create(folder / "ledger.sqlite", plan=plan, **common) as ledger:
        release(ledger, range(rounds))
        if steps:
            ledger.charge(HeadSteps(q=plan.q, z=plan.z, steps=steps))
    return folder


def release(ledger: Ledger, rounds: range) -> None:
    for t in rounds:
        event = ledger.plan.release(t=t, m=1 + t % 2, position=t // 2, B=B)
        ledger.submit(event, np.array([0.5]), bytes(16))
