"""What was released, apart from what it costs.

A cost is stated as `unit_mu`, the Gaussian-DP parameter when a record's contribution becomes nothing
(zero-out). What the other neighbours make of it is `neighbour_factor`.
"""

from __future__ import annotations

import math

from msgspec import Struct

from dpzv.terms import Neighbours

__all__ = [
    "GRID_BITS",
    "LATTICE_DISTANCE",
    "ReleaseEvent",
    "StartEvent",
    "grid_scale",
    "neighbour_factor",
    "unit_mu",
]

GRID_BITS = 40
"""The grid on which clipped values are summed has 2^40 steps from 0 to `C`."""

LATTICE_DISTANCE = 0.0202
"""The discrete Gaussian of scale s is within this over s^2 of the rounded continuous one, in total variation.

To first order their ratio at k is 1 + ((k/s)^2 - 1) / (24 s^2), so the distance is E|x^2 - 1| / 48 = 0.02016 over s^2.
"""


class ReleaseEvent(Struct, frozen=True, kw_only=True):
    """One answer `Delta`: the mean over `B` records of values clipped to norm C, plus N(0, sigma_dp^2) on each entry.

    With `per_record` every record's clipped vector is returned by itself (vafl), so `B` divides nothing. The batch is
    public: it is number `position` of device `m`'s schedule. `t` counts rounds over all devices.
    """

    t: int
    m: int
    position: int
    B: int
    C: float
    sigma_dp: float
    per_record: bool = False


class StartEvent(Struct, frozen=True, kw_only=True):
    """Device `m`'s dp-pca start: a sum of outer products plus symmetric Gaussian noise.

    `noise_multiplier` is the noise's standard deviation per entry over the largest norm R^2 + c^2 of one
    record's outer product.
    """

    m: int
    noise_multiplier: float


def unit_mu(event: ReleaseEvent | StartEvent) -> float:
    """The Gaussian-DP parameter of `event` for one record in it under zero-out; infinity without noise.

    Formal guarantee: removing a record's term moves a release by at most C/B (C where each record has its own vector)
    and a start by at most R^2 + c^2 in Frobenius norm, which over the noise's standard deviation is this value.
    """
    if isinstance(event, StartEvent):
        return 1 / event.noise_multiplier if event.noise_multiplier > 0 else math.inf
    if event.sigma_dp <= 0 or not math.isfinite(event.C):
        return math.inf
    return event.C / (_divisor(event) * event.sigma_dp)


def grid_scale(event: ReleaseEvent) -> float:
    """Standard deviation of the noise on a sum of `event` (on a number, `per_record`), in steps of the grid."""
    return event.sigma_dp * _divisor(event) * 2.0**GRID_BITS / event.C


def _divisor(event: ReleaseEvent) -> int:
    return 1 if event.per_record else event.B


def neighbour_factor(kind: type[ReleaseEvent] | type[StartEvent], neighbours: Neighbours) -> float:
    """How far one record moves an event of `kind` under `neighbours`, in units of zero-out.

    Replacing a clipped value (or vector) turns -C into C at worst: 2. Replacing a row v by w moves the sum of outer
    products by ``||v v^T - w w^T||_F <= sqrt(||v||^4 + ||w||^4)``: sqrt(2).
    """
    if neighbours == "zero-out":
        return 1.0
    return 2.0 if kind is ReleaseEvent else math.sqrt(2)
