"""A request for a privacy plan, as small as they come; tests say what they change."""

from __future__ import annotations

from typing import Any

import msgspec

from dpzv.privacy.plan import PlanRequest

__all__ = ["asked"]

_ASKED = PlanRequest(
    epsilon=1.0,
    delta_dp=1e-6,
    accounting="exact",
    neighbours="replace-one",
    protects="records",
    C=1.0,
    B=50,
    D=500,
    M=1,
    T=10,
    participations=1,
    min_batch=2,
    head_rule="frozen",
    starts=("random",),
    start_share=0.0,
)


def asked(**changes: Any) -> PlanRequest:
    """A run of epsilon 1 on records, one device, no private head, with `changes`."""
    return msgspec.structs.replace(_ASKED, **changes)
