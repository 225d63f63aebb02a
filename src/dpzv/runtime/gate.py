"""The only way to a release: the ledger admits it, the noise source adds noise, the row is stored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpzv.errors import PrivacyRefused
from dpzv.privacy.events import ReleaseEvent
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan, epsilon_spent
from dpzv.protocol.messages import Embeddings, Pending, Release

__all__ = ["Gate"]

BLOCK = 16
"""Head steps paid for at once, before they run: one commit for several steps. A crash forfeits what is left of them, so
that of a short plan only one in `SHARE` is paid for at once."""
SHARE = 100


class Gate:
    """Turns a `Pending` into a `Release`, once: a repeated round gets its stored value, never new noise."""

    def __init__(self, ledger: Ledger, noise: NoiseSource) -> None:
        self.plan: PrivacyPlan = ledger.plan
        self.ledger, self._noise = ledger, noise
        self._last: ReleaseEvent | None = None  # asked for several times a round
        self._charged = 0  # head steps paid for but not yet taken; lost in a crash, and then paid again
        self._kept = ledger.head_steps  # those paid for when the head was last in a checkpoint

    def contributes(self, t: int, message: Embeddings) -> NDArray[np.bool_] | None:
        """Which records [B] of the batch may still contribute to round `t`; `None` if all of them may."""
        event = self._event(t, message.m, message.position, len(message.h[0]))
        if self.ledger.all_within_cap(event):
            return None
        past = self.ledger.past_cap(event)
        return ~past if past.any() else None

    def release(self, pending: Pending, frame_xxh3: bytes) -> Release:
        """Admit, noise and store round `t`; what was stored before a crash is returned as it was."""
        release = self.submit(pending, frame_xxh3)
        self.ledger.wait(release.t)
        return release

    def submit(self, pending: Pending, frame_xxh3: bytes) -> Release:
        """As `release`, but the value may be sent only once `ledger.wait(t)` has returned."""
        event = self._event(pending.t, pending.m, pending.position, pending.B)
        if pending.divisor != (1 if event.per_record else pending.B):
            raise PrivacyRefused(
                f"the plan is for means over {pending.B} records, or for numbers of one; got numbers divided by "
                f"{pending.divisor}; release what was planned."
            )
        Delta = self.ledger.stored(event.t, frame_xxh3)
        if Delta is None:
            self.ledger.admit(event)
            Delta = self._noise.release(
                pending.totals,
                grid=pending.grid,
                divisor=pending.divisor,
                sigma_dp=self.plan.sigma_dp,
                t=pending.t,
                m=pending.m,
            )
            self.ledger.submit(event, Delta, frame_xxh3)
        return Release(pending.t, pending.m, pending.position, Delta)

    def head_steps(self, t: int) -> int:
        """How many steps of a dp-sgd head may follow round `t`, paid for before this returns.

        The plan's steps are spread evenly over the rounds; without rounds all of them follow round 0. With
        secret noise a step taken again after a crash is paid for again, so the run may end with fewer.
        """
        plan, ledger = self.plan, self.ledger
        if not plan.head_steps:
            return 0
        before, after = self._steps_due(t - 1), self._steps_due(t)
        due = after - before
        if self._noise.name == "seeded":  # a repeated step repeats its noise: it is the same step
            if after > ledger.head_steps:
                ledger.charge_head_steps(after - ledger.head_steps)
            return due
        if due > self._charged and ledger.head_steps_left:
            block = max(due - self._charged, min(BLOCK, plan.head_steps // SHARE))
            block = min(block, ledger.head_steps_left)
            ledger.charge_head_steps(block)
            self._charged += block
        taken = min(due, self._charged)
        self._charged -= taken
        return taken

    @property
    def at_stake(self) -> float:
        """The share of all head steps, as paid for, that a crash now would forfeit; none where noise is repeated."""
        if not self.plan.head_steps or self._noise.name == "seeded":
            return 0.0
        return (self.ledger.head_steps - self._kept) / self.plan.head_steps

    def kept(self) -> None:
        """The head as it is now is in a checkpoint."""
        self._kept = self.ledger.head_steps

    def _steps_due(self, t: int) -> int:
        """Head steps planned up to round `t`, that one included."""
        return self.plan.head_steps * max(t, 0) // self.plan.T if self.plan.T else self.plan.head_steps * (t >= 0)

    @property
    def epsilon_spent(self) -> float:
        """What the releases so far cost the record that took part most: an estimate below the claim."""
        return epsilon_spent(
            self.plan,
            releases=self.ledger.releases,
            unit_mu_squared=self.ledger.unit_mu_squared,
            head_steps=self.ledger.head_steps,
        )

    def _event(self, t: int, m: int, position: int, B: int) -> ReleaseEvent:
        """What the round would release, with the batch as it came: the ledger refuses another size than planned."""
        last = self._last
        if last is None or (last.t, last.m, last.position, last.B) != (t, m, position, B):
            last = self._last = self.plan.event(t=t, m=m, position=position, B=B)
        return last
