"""A request for a privacy plan, as small as they come, and costs written by hand; tests say what they change."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from dpzv.privacy.accountant import Composition, compose
from dpzv.privacy.events import Event, Gaussian, Releases, SampledGaussian, Start
from dpzv.privacy.plan import PlanRequest

__all__ = ["asked", "cost_of", "earlier"]

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
    method="dpzv",
)


def asked(**changes: Any) -> PlanRequest:
    """A run of epsilon 1 on records, one device, no private head, with `changes`."""
    return msgspec.structs.replace(_ASKED, **changes)


def cost_of(
    *, releases: float = 0.0, starts: float = 0.0, heads: tuple[SampledGaussian, ...] = (), lattice: float = 0.0
) -> Composition:
    """Sums of squared costs under zero-out; the factors of replace-one are written here a second time, on purpose."""
    pairs = (Gaussian(square=releases, replaced=2.0), Gaussian(square=starts, replaced=math.sqrt(2)))
    gaussian = tuple(pair for pair in pairs if pair.square)
    return compose(Composition(gaussian=gaussian, sampled=heads, lattice=lattice))


def earlier(*, releases: float, starts: float = 0.0) -> tuple[Event, ...]:
    """The events of an earlier run with these costs."""
    return (
        Releases(cap=releases, distance=0.0),
        Start(m=0, mu=math.sqrt(starts), noise_multiplier=math.inf),
    )
