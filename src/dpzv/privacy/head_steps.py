"""The private steps of w_0. Everything about this mechanism stands here, and nothing about any other mechanism.

A step sums clipped gradients over a secret sample of the records and adds Gaussian noise. Here are its event with the
pair that dominates it, the calibration of its noise, and the noise itself with the state that a checkpoint keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dpzv.declarations import head_rule_facts
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.accountant import Composition, compose, gaussian_mu, mu_squared, settle
from dpzv.privacy.events import Event, Pair, SampledGaussian
from dpzv.privacy.gdp import mu_of
from dpzv.privacy.plan import SUM_SLACK
from dpzv.sensitivity import MOST_SUMMED, clip_factor
from dpzv.terms import HeadRuleName, Neighbours

if TYPE_CHECKING:  # plans are made without numpy, so that calculators start fast
    import numpy as np
    from numpy.typing import NDArray

    from dpzv.privacy.noise import NoiseSource

__all__ = [
    "LEAST_Z",
    "MECHANISM",
    "HeadNoise",
    "HeadSteps",
    "Mechanism",
    "NoiseState",
    "head_noise",
    "mechanism_of",
    "poisson_batch",
    "steps_of",
]

LEAST_Z = 0.25
"""A head step never has less noise than this, even where a tiny `q` would let delta_dp pay for it."""

Noise: TypeAlias = "NDArray[np.float64] | NDArray[np.int64]"
"""Noise for one array of sums."""

NoiseState: TypeAlias = "tuple[NDArray[np.float64], ...]"
"""What the noise of later steps needs to know of earlier steps. Checkpoints store it."""


class HeadSteps(Event, Struct, frozen=True, kw_only=True, tag=True):
    """`steps` private steps of w_0: each record is in a step's batch with secret probability `q`.

    The noise on the sum of the clipped gradients has standard deviation `z` times the clip.
    """

    q: float
    z: float
    steps: int

    def pairs(self) -> tuple[Pair, ...]:
        """The sampled Gaussian mechanism, once for every step, with the part of the noise that the account may count.

        The rest of it, `SUM_SLACK`, makes up for the rounding of sums.
        """
        return (SampledGaussian(q=self.q, z=self.z / (1 + SUM_SLACK), steps=self.steps),)

    def joined(self, earlier: Event) -> Event | None:
        """Blocks of steps with the same noise are one block."""
        if type(earlier) is type(self) and (earlier.q, earlier.z) == (self.q, self.z):
            return replace(self, steps=earlier.steps + self.steps)
        return None

    def is_new(self, charged: Sequence[Event], planned: Sequence[Event]) -> bool:
        """Every block of steps is new; refused when it is empty, has other noise, or is more than the plan leaves."""
        most = done = 0
        for event in planned:
            if isinstance(event, HeadSteps) and (event.q, event.z) == (self.q, self.z):
                most += event.steps
        for event in charged:
            if isinstance(event, HeadSteps):
                done += event.steps
        left = max(0, most - done)
        if not 0 < self.steps <= left:
            raise PrivacyRefused(
                f"the plan leaves {left} of {most} head steps with q={self.q:g} and z={self.z:g}, got a block of "
                f"{self.steps}; charge no more than are left."
            )
        return True


def steps_of(events: Sequence[Event]) -> int:
    """How many head steps there are among `events`."""
    return sum(event.steps for event in events if isinstance(event, HeadSteps))


class HeadNoise:
    """The secret sample and the noise of head steps: `D` records, `batch` of them expected in a sample, clip `C_0`.

    `grid` is what sums and noise are multiples of with secret noise; it is 0 where both are plain float64 numbers. A
    mechanism whose steps share noise would keep what they share in the state; independent noise needs no state.
    """

    def __init__(self, source: NoiseSource, *, D: int, batch: int, z: float, C_0: float) -> None:
        self.D, self.batch, self.C_0 = D, batch, C_0
        self.grid = source.grid(C_0) if z else 0.0
        self._source, self._scale = source, z * C_0
        if self.grid and D > MOST_SUMMED:
            raise ConfigError(f"a private head sums over at most {MOST_SUMMED:,} records, got {D:,}; use fewer.")

    def init(self, shapes: Sequence[tuple[int, ...]]) -> NoiseState:
        """The state before the first step, for sums of these `shapes`."""
        return ()

    def sample(self, t: int, j: int) -> tuple[NDArray[np.int64], np.random.Generator]:
        """The records of the j-th head step after round t, ascending, and the secret stream for the step's noise.

        Each record is in it with probability batch / D. The stream's name is a format of seeded runs, and so is the
        order of its draws: first the sample, then the noise.
        """
        stream = self._source.generator("head", t, j)
        return poisson_batch(stream, self.D, self.batch / self.D), stream

    def update(
        self, state: NoiseState, stream: np.random.Generator, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[list[Noise], NoiseState]:
        """What is added to the sums of a step, one array for each of `shapes`, and the state after it."""
        added = []
        for shape in shapes:
            added.append(self.drawn(stream, shape))
        return added, state

    def drawn(self, stream: np.random.Generator, shape: tuple[int, ...], factor: float = 1.0) -> Noise:
        """Noise of `factor` times the planned standard deviation: integers in units of `grid`, if there is one.

        Noise on a grid must not be multiplied afterwards. It could not reach all integers then, and those that it can
        reach would give the sum away.
        """
        scale = factor * self._scale
        if not self.grid:
            return scale * stream.standard_normal(shape)
        from dpzv.privacy.noise import rounded_gaussian  # plans are made without numpy

        return rounded_gaussian(scale / self.grid, math.prod(shape), stream).reshape(shape)


def poisson_batch(generator: np.random.Generator, D: int, q: float) -> NDArray[np.int64]:
    """Each of 0 .. D-1 independently with probability `q`, ascending, int64, in O(q D).

    The gaps between the chosen ids are geometric, which is the same as one coin per record. Nothing is truncated. The
    order of the draws is a format of seeded runs.
    """
    import numpy as np

    if not 0 < q <= 1:
        raise ConfigError(f"a sampling probability must lie in (0, 1], got {q}; lower head.batch.")
    if q == 1:
        return np.arange(D, dtype=np.int64)
    chunk = int(q * D + 6 * math.sqrt(q * D) + 16)  # enough in nearly every draw
    found = [np.cumsum(generator.geometric(q, chunk)) - 1]
    while found[-1][-1] < D:
        found.append(found[-1][-1] + np.cumsum(generator.geometric(q, chunk)))
    ids: NDArray[np.int64] = np.concatenate(found).astype(np.int64, copy=False)
    return ids[: int(np.searchsorted(ids, D))]


def head_noise(
    rest: Composition, *, q: float, steps: int, epsilon: float, delta_dp: float, neighbours: Neighbours
) -> float:
    """The least noise multiplier `z` of `steps` head steps beside `rest`, rounded up; at least `LEAST_Z`.

    Formal guarantee: `rest` and the head together are (epsilon, delta_dp)-DP.
    """
    whole = mu_of(epsilon, delta_dp) ** 2
    share = 1 - gaussian_mu(rest, neighbours) ** 2 / whole
    unit = steps * (clip_factor(neighbours) * q) ** 2 / whole

    def used(x: float) -> float:  # the unknown is x = -log z, with which the cost grows
        head = Composition(sampled=(SampledGaussian(q=q, z=math.exp(-x), steps=steps),))
        return mu_squared(compose(rest, head), delta_dp, neighbours) / whole

    def limit(square: float) -> float:
        """x at which the head uses `square` of the budget in the large-noise limit, unit * (e^(1/z^2) - 1)."""
        return 0.5 * math.log(math.log1p(square / unit))

    def guess(x: float, part: float) -> float:
        square = unit * math.expm1(min(math.exp(2 * x), 700.0))
        return limit(square * share / max(part - 1 + share, 1e-3 * share))

    least, most = -math.log(1e9), -math.log(LEAST_Z)
    x = least
    if share > 0:
        x = settle(used, guess=guess, first=min(limit(share), most), least=least, most=most)
    if x <= least:
        raise PrivacyRefused(
            f"epsilon={epsilon:g} leaves nothing for {steps} head steps; raise epsilon or the head's share."
        )
    return math.exp(-x)


class Mechanism(Struct, frozen=True):
    """What a mechanism's file offers as `MECHANISM`: the event of head steps, their noise, and its calibration."""

    event: type[HeadSteps]
    noise: type[HeadNoise]
    calibrated: Callable[..., float]


MECHANISM = Mechanism(HeadSteps, HeadNoise, head_noise)


def mechanism_of(rule: HeadRuleName) -> Mechanism:
    """The mechanism that a head rule declares for its private steps; a rule without private steps is refused."""
    name = head_rule_facts(rule).mechanism
    if not name:
        raise ConfigError(f"expected a head rule with private steps, got '{rule}', which has none; choose another.")
    found: Mechanism = import_module(f"dpzv.privacy.{name}").MECHANISM
    return found
