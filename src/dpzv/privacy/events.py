"""What costs privacy: events, each with the pair of distributions that dominates it. The account folds a list of them.

A new mechanism is a new subclass of `Event` in a file of its own. Costs are stated under zero-out, where a
record's contribution becomes nothing. A Gaussian pair also says how many times larger its cost is under replace-one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct

from dpzv.errors import PrivacyRefused
from dpzv.sensitivity import GRID_BITS, clip_factor, outer_product_factor

__all__ = [
    "LATTICE_DISTANCE",
    "Event",
    "Gaussian",
    "Pair",
    "PlannedRelease",
    "Releases",
    "SampledGaussian",
    "Start",
    "grid_scale",
    "remember",
    "unit_mu",
    "unpacked",
]

T = TypeVar("T")

LATTICE_DISTANCE = 0.0202
"""The discrete Gaussian of scale s is within this over s^2 of the rounded continuous one, in total variation.

To first order their ratio at k is 1 + ((k/s)^2 - 1) / (24 s^2), so the distance is E|x^2 - 1| / 48 = 0.02016 over s^2.
"""


class Gaussian(Struct, frozen=True, kw_only=True):
    """N(0, 1) against N(mu, 1): `square` is mu^2 under zero-out; replace-one makes mu `replaced` times larger."""

    square: float
    replaced: float


class SampledGaussian(Struct, frozen=True, kw_only=True):
    """`steps` sums of clipped values, each record in a sum with secret probability `q`.

    The noise on a sum has standard deviation `z` times the clip.
    """

    q: float
    z: float
    steps: int


Pair = Gaussian | SampledGaussian


class Event:
    """Something that costs privacy. Subclasses are frozen structs with ``tag=True``, which plans and ledgers can store.

    The class name is the tag and the field names are the keys, so both are formats on disk.
    """

    __slots__ = ()
    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        """Make the kind known, so that it can be read back."""
        Event.kinds[cls.__name__] = cls

    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that dominate this event for one record.

        Formal guarantee: what the event reveals is post-processing of independent draws from them.
        """
        raise NotImplementedError

    def lattice(self) -> float:
        """The total variation between the noise as drawn on integers and the continuous noise of `pairs`."""
        return 0.0

    def joined(self, earlier: Event) -> Event | None:
        """This event and an `earlier` one as one event of the same cost; `None` if they stay two."""
        return None

    def is_new(self, charged: Sequence[Event], planned: Sequence[Event]) -> bool:
        """Whether this event must be stored after those `charged` before; refused unless `planned` allows it.

        Both lists hold events of all kinds. Unless a kind says otherwise, an event happens once, exactly as planned,
        and the same event a second time is a repeat that is not stored again.
        """
        self.require_planned(planned)
        return self not in charged

    def require_planned(self, planned: Sequence[Event]) -> None:
        """Refuse an event that is not exactly one of those `planned`."""
        if self not in planned:
            raise PrivacyRefused(f"expected one of {list(planned)} as planned, got {self}; do what was planned.")


class PlannedRelease(Struct, frozen=True, kw_only=True):
    """One answer `Delta` as planned: the mean over `B` records of values clipped to norm C, with noise on each entry.

    The noise is N(0, sigma_dp^2). With `per_record` every record's clipped vector is returned by itself, so `B` divides
    nothing. The batch is public: it is number `position` of device `m`'s schedule. `t` counts rounds over all devices.
    This is no `Event`: the ledger counts releases record by record, and the account folds their cap, `Releases`.
    """

    t: int
    m: int
    position: int
    B: int
    C: float
    sigma_dp: float
    per_record: bool = False


class Releases(Event, Struct, frozen=True, kw_only=True, tag=True):
    """All releases of a run at their cap: no record's sum of squared `unit_mu` passes `cap`.

    `distance` is the sum, over all numbers released, of the distance between noise on integers and rounded Gaussian
    noise.
    """

    cap: float
    distance: float

    def pairs(self) -> tuple[Pair, ...]:
        """One Gaussian: the adversary knows the batches, so squares add up."""
        return (Gaussian(square=self.cap, replaced=clip_factor("replace-one")),)

    def lattice(self) -> float:
        """The noise of releases is drawn on integers."""
        return self.distance


class Start(Event, Struct, frozen=True, kw_only=True, tag=True):
    """The private start of the device with index `m`: a sum of outer products plus symmetric Gaussian noise.

    `noise_multiplier` is the noise's standard deviation per entry over the largest norm R^2 + c^2 of one record's outer
    product. `mu` is what it is charged under zero-out: a little more than that noise, since the sum is in float64.
    """

    m: int
    mu: float
    noise_multiplier: float

    def pairs(self) -> tuple[Pair, ...]:
        """One Gaussian, whose mu is never smaller than the noise drawn implies."""
        drawn = 1 / self.noise_multiplier if self.noise_multiplier > 0 else math.inf
        return (Gaussian(square=max(self.mu, drawn) ** 2, replaced=outer_product_factor("replace-one")),)


def unit_mu(release: PlannedRelease) -> float:
    """The Gaussian-DP parameter of a release for one record in it under zero-out; infinity without noise.

    Formal guarantee: removing a record's term moves a release by at most C/B (C where each record has its own vector),
    which over the noise's standard deviation is this value.
    """
    if release.sigma_dp <= 0 or not math.isfinite(release.C):
        return math.inf
    return release.C / (_divisor(release) * release.sigma_dp)


def grid_scale(release: PlannedRelease) -> float:
    """Standard deviation, in steps of the grid, of the noise on a sum of `release` (with `per_record`, on a number)."""
    return release.sigma_dp * _divisor(release) * 2.0**GRID_BITS / release.C


def _divisor(release: PlannedRelease) -> int:
    return 1 if release.per_record else release.B


def remember(events: list[Event], event: Event) -> None:
    """Add `event` to `events`, joined with an earlier one where that is possible, so that the list stays short."""
    for i, earlier in enumerate(events):
        if (joined := event.joined(earlier)) is not None:
            events[i] = joined
            return
    events.append(event)


def unpacked(packed: bytes, kind: type[T]) -> T:
    """The event or plan that MessagePack wrote as `packed`, bit for bit; an event of an unknown kind is refused.

    Bytes that are wrong in any other way raise msgspec.ValidationError.
    """
    return msgspec.msgpack.decode(packed, type=kind, dec_hook=_event_of)


def _event_of(kind: type, value: Any) -> Any:
    if kind is not Event or not isinstance(value, dict) or value.get("type") not in Event.kinds:
        raise PrivacyRefused(
            f"expected an event of a known kind ({', '.join(sorted(Event.kinds))}), got {value!r}; "
            "read it with the version that wrote it."
        )
    return msgspec.convert(value, Event.kinds[value["type"]])
