"""The only way to a release: the ledger admits it, the noise source adds noise, the row is stored."""

from __future__ import annotations

import torch

from dpzv.privacy.events import ReleaseEvent
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan, epsilon_spent
from dpzv.protocol.messages import Embeddings, Pending, Release

__all__ = ["Gate"]


class Gate:
    """Turns a `Pending` into a `Release`, once: a repeated round gets its stored value, never new noise."""

    def __init__(self, plan: PrivacyPlan, ledger: Ledger, noise: NoiseSource) -> None:
        self.plan, self.ledger, self._noise = plan, ledger, noise

    def contributes(self, t: int, message: Embeddings) -> torch.Tensor | None:
        """Which records [B] of the batch may still contribute to round `t`; `None` if all of them may."""
        past = self.ledger.past_cap(self._event(t, message.m, message.position))
        return torch.from_numpy(~past) if past.any() else None

    def release(self, pending: Pending, frame_sha256: bytes) -> Release:
        """Admit, noise and store round `t`; what was stored before a crash is returned as it was."""
        event = self._event(pending.t, pending.m, pending.position)
        Delta = self.ledger.stored(event.t, frame_sha256)
        if Delta is None:
            self.ledger.admit(event)
            Delta = self._noise.release(
                total=pending.total,
                grid=pending.grid,
                B=pending.B,
                sigma_dp=self.plan.sigma_dp,
                t=pending.t,
                m=pending.m,
            )
            self.ledger.write(event, Delta, frame_sha256)
        return Release(pending.t, pending.m, pending.position, Delta)

    @property
    def epsilon_spent(self) -> float:
        """What the releases so far cost the record that took part most: an estimate below the claim."""
        return epsilon_spent(self.plan, releases=self.ledger.releases, unit_mu_squared=self.ledger.unit_mu_squared)

    def _event(self, t: int, m: int, position: int) -> ReleaseEvent:
        plan = self.plan
        return ReleaseEvent(t=t, m=m, position=position, B=plan.B, C=plan.C, sigma_dp=plan.sigma_dp)
