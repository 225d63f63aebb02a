"""Algorithm 1 without noise and clip, in one place: no messages, no table machine, no ledger. Two oracles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch.func import functional_call

from dpzv.data.schedule import BatchSchedule
from dpzv.rng import seed_of
from dpzv.zo.directions import layout
from tests.oracles import whole


@dataclass(frozen=True)
class Centralised:
    """All networks, the head and all records in one process; `networks` are trained in place, round-robin."""

    networks: list[torch.nn.Module]
    head: torch.nn.Module
    xs: list[torch.Tensor]
    y: torch.Tensor
    T: int
    B: int
    lam: float
    eta: float
    seed: int

    def train(self) -> list[float]:
        """Two points a direction, one direction a message; every Delta."""
        table, Deltas = self._table(), []
        for m, k, ids in self._rounds():
            (u,) = self._directions(m, k, 1)
            (h_plus, f_plus), (h_minus, f_minus) = (self._at(table, m, ids, u, s) for s in (self.lam, -self.lam))
            table[m][ids] = (h_plus + h_minus) / 2
            Delta = float(((f_plus - f_minus) / (2 * self.lam)).sum()) * 1.0 / self.B
            with torch.no_grad():
                for p, one in zip(self.networks[m].parameters(), u, strict=True):
                    p.add_(one, alpha=-self.eta * Delta)
            Deltas.append(Delta)
        return Deltas

    def train_along(self, K: int) -> list[list[float]]:
        """K > 1 directions a message, one-sided; every Delta."""
        table, Deltas = self._table(), []
        for m, k, ids in self._rounds():
            us = self._directions(m, k, K)
            h, f = self._at(table, m, ids, us[0], 0.0)
            moved = [self._at(table, m, ids, u, self.lam)[1] for u in us]
            Delta = [float(((f_j - f) / self.lam).sum()) / self.B for f_j in moved]
            table[m][ids] = h
            with torch.no_grad():
                for i, p in enumerate(self.networks[m].parameters()):
                    p.sub_(sum(d * u[i] for d, u in zip(Delta, us, strict=True)), alpha=self.eta / K)
            Deltas.append(Delta)
        return Deltas

    def _table(self) -> list[torch.Tensor]:
        return [network(x).detach() for network, x in zip(self.networks, self.xs, strict=True)]

    def _rounds(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """The device from 0 on, the number of its batch, and the records of the batch."""
        M, D = len(self.networks), len(self.y)
        for t in range(self.T):
            m, k = t % M, t // M
            yield m, k, torch.from_numpy(BatchSchedule(self.seed, m + 1, self.B, D).ids(k).astype(np.int64))

    def _directions(self, m: int, k: int, K: int) -> list[list[torch.Tensor]]:
        where = layout(self.networks[m])
        return [whole(where, seed_of(self.seed, "direction", m + 1, k * K + j)) for j in range(K)]

    def _at(
        self, table: list[torch.Tensor], m: int, ids: torch.Tensor, u: list[torch.Tensor], offset: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The embeddings and losses of a batch where the weights of device m are shifted along `u`."""
        network = self.networks[m]
        moved = {name: one * offset + p.detach() for (name, p), one in zip(network.named_parameters(), u, strict=True)}
        h = functional_call(network, moved, (self.xs[m][ids],)).detach()
        rows = torch.cat([h if j == m else other[ids] for j, other in enumerate(table)], dim=1)
        return h, F.cross_entropy(self.head(rows), self.y[ids], reduction="none").detach().double()
