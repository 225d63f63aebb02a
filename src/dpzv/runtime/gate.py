"""The only way to a release: the ledger admits it, the noise source adds noise, the row is stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpzv.declarations import method_facts
from dpzv.errors import PrivacyRefused
from dpzv.privacy.head_steps import HeadSteps
from dpzv.privacy.label_counts import LabelCounts
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.noise import NoiseSource, SeededNoise
from dpzv.privacy.plan import PrivacyPlan, epsilon_spent
from dpzv.protocol.messages import Embeddings, Pending, Release

__all__ = ["Gate"]

BLOCK = 16
"""The most head steps that are paid for ahead, so that several steps share one commit. A crash forfeits those that were
not taken yet, so no more than one in `SHARE` of all planned steps is paid for ahead."""
SHARE = 100


class Gate:
    """Turns a `Pending` into a `Release`, once: a repeated round gets its stored value, never new noise."""

    def __init__(self, ledger: Ledger, noise: NoiseSource) -> None:
        self.plan: PrivacyPlan = ledger.plan
        self.ledger, self._noise = ledger, noise
        self._planned = self.plan.release(t=0, m=0, position=0, B=self.plan.B)  # each round replaces these numbers
        self._directions = method_facts(self.plan.method).directions  # whether an answer has K numbers
        self._steps = [event for event in self.plan.events if isinstance(event, HeadSteps)]  # all planned, in one event
        # head steps paid for: so far, and when the head was last in a checkpoint
        self._paid = self._kept = ledger.head_steps
        self._ahead = 0  # steps paid for but not yet taken; lost in a crash, and then paid again

    def contributes(self, t: int, message: Embeddings) -> NDArray[np.bool_] | None:
        """Which records [B] of the batch may still contribute to round `t`; `None` if all of them may."""
        planned = replace(self._planned, t=t, m=message.m, position=message.position, B=len(message.h[0]))
        return self.ledger.contributes(planned)

    def release(self, pending: Pending, frame_xxh3: bytes) -> Release:
        """Admit, noise and store round `t`; what was stored before a crash is returned as it was."""
        release = self.submit(pending, frame_xxh3)
        self.ledger.wait(release.t)
        return release

    def submit(self, pending: Pending, frame_xxh3: bytes) -> Release:
        """As `release`, but the value may be sent only once `ledger.wait(t)` has returned.

        The ledger refuses a batch of another size than the schedule's, and the gate a divisor or a number of totals
        other than the plan's.
        """
        plan, ledger = self.plan, self.ledger
        t, m, position, B = pending.t, pending.m, pending.position, pending.B
        divisor = 1 if self._planned.per_record else B
        if pending.divisor != divisor:
            raise PrivacyRefused(
                f"the plan is for numbers divided by {divisor}, got numbers divided by {pending.divisor}; release what "
                "was planned."
            )
        if self._directions and len(pending.totals) != plan.directions:
            raise PrivacyRefused(
                f"the plan is for messages of K={plan.directions} numbers, got {len(pending.totals)}; release what was "
                "planned."
            )
        Delta = ledger.stored(t, frame_xxh3) if t <= ledger.last_t else None
        if Delta is None:
            planned = replace(self._planned, t=t, m=m, position=position, B=B)
            ledger.admit(planned)
            Delta = self._noise.release(
                pending.totals, grid=pending.grid, divisor=pending.divisor, sigma_dp=plan.sigma_dp, t=t, m=m
            )
            ledger.submit(planned, Delta, frame_xxh3)
        return Release(t, m, position, Delta)

    def reserve(self, rounds: Sequence[tuple[int, int, int]], numbers: Sequence[int]) -> NDArray[np.float64]:
        """Charge rounds (t, m, position) that are computed afterwards in one piece, and return their simulated noise.

        Their rows in the ledger say what they cost and hold no values, since no device asks for one. Rounds charged
        before an interruption are not charged again, and get the same noise. A release to device m has
        `numbers[m - 1]` numbers; the noise [n, most] of a shorter one ends with zeros.
        """
        plan, ledger = self.plan, self.ledger
        if not isinstance(self._noise, SeededNoise):
            raise PrivacyRefused(
                'rounds in blocks need simulated noise, got secret noise; set noise.source = "seeded", or runtime.kind '
                '= "simulate".'
            )
        known = [one for one in rounds if one[0] <= ledger.last_t]
        for t, m, position in known:
            if not ledger.knows(m, position, t):
                raise PrivacyRefused(f"round {t} was charged for another batch than device {m}'s; start a new run.")
        new = rounds[len(known) :]
        if new:
            t, m, position = new[0]
            ledger.submit_all(replace(self._planned, t=t, m=m, position=position, B=plan.B), new)
        noise = np.zeros((len(rounds), max(numbers)))
        for n in set(numbers):
            own = [i for i, (_, m, _) in enumerate(rounds) if numbers[m - 1] == n]
            if own:
                noise[own, :n] = self._noise.ahead([rounds[i][:2] for i in own], n, plan.sigma_dp)
        return noise

    def head_steps(self, t: int) -> int:
        """How many steps of a private head may follow round `t`, paid for before this returns.

        The plan's steps are spread evenly over the rounds; without rounds all of them follow round 0. With
        secret noise a step taken again after a crash is paid for again, so the run may end with fewer.
        """
        planned, T = self.plan.head_steps, self.plan.T
        if not planned:
            return 0
        # the steps planned up to the round before this one, and up to this one
        before, after = (planned * max(t - 1, 0) // T, planned * t // T) if T else (planned * (t > 0), planned)
        due = after - before
        seeded, block = self._noise.name == "seeded", 0
        if seeded:  # a step that is taken again repeats its noise, so it is the same step
            block = max(0, after - self._paid)
        elif due > self._ahead:
            block = min(max(due - self._ahead, min(BLOCK, planned // SHARE)), planned - self._paid)
        if block:
            self.ledger.charge(replace(self._steps[0], steps=block))
            self._paid += block
            self._ahead += block
        taken = due if seeded else min(due, self._ahead)
        self._ahead -= taken
        return taken

    def label_counts(self, y: NDArray[np.int64], classes: int) -> tuple[float, ...]:
        """How many of the labels `y` are of each class, with noise; nothing if the plan does not count them.

        They are counted once. What is drawn may be used only after it was stored together with its charge, so a run
        that died before that has used nothing, and a later one finds the stored numbers.
        """
        for event in self.ledger.charged:
            if isinstance(event, LabelCounts):
                return event.counts
        for event in self.plan.events:
            if isinstance(event, LabelCounts):
                counted = replace(event, counts=self._counted(np.bincount(y, minlength=classes), event.sigma))
                self.ledger.charge(counted)
                return counted.counts
        return ()

    def _counted(self, counts: NDArray[np.int64], sigma: float) -> tuple[float, ...]:
        """`counts` plus noise of `sigma`.

        With secret noise both are integers of a fine grid (docs/privacy.md, Proof 11). The stream's name is a format of
        seeded runs.
        """
        if not sigma:
            return tuple(counts.astype(np.float64).tolist())
        grid = self._noise.grid(1.0)
        drawn = self._noise.added(np.full(len(counts), sigma), grid, "label counts")
        noisy = counts * round(1 / grid) + drawn if grid else counts + drawn
        return tuple((noisy * (grid or 1.0)).tolist())

    @property
    def at_stake(self) -> float:
        """The share of all planned head steps that a crash now would forfeit; 0 with seeded noise, which repeats."""
        if not self.plan.head_steps or self._noise.name == "seeded":
            return 0.0
        return (self._paid - self._kept) / self.plan.head_steps

    def kept(self) -> None:
        """Take note that the head as it is now is in a checkpoint."""
        self._kept = self._paid

    @property
    def epsilon_spent(self) -> float:
        """What the releases so far cost the record that took part most: an estimate below the claim."""
        ledger = self.ledger
        return epsilon_spent(self.plan, ledger.releases, ledger.unit_mu_squared, ledger.head_steps)
