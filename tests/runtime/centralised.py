"""Algorithm 1 without noise and clip, in one place: no messages, no table machine, no ledger. Two oracles."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch.func import functional_call

from dpzv.data.schedule import BatchSchedule
from dpzv.rng import seed_of
from dpzv.zo.directions import layout
from tests.oracles import whole


def train(
    networks: list[torch.nn.Module],
    head: torch.nn.Module,
    xs: list[torch.Tensor],
    y: torch.Tensor,
    *,
    T: int,
    B: int,
    lam: float,
    eta: float,
    seed: int,
) -> list[float]:
    """Train `networks` in place, round-robin, and return every Delta."""
    M, D = len(networks), len(y)
    table = [network(x).detach() for network, x in zip(networks, xs, strict=True)]
    Deltas = []
    for t in range(T):
        m, k = t % M, t // M
        ids = torch.from_numpy(BatchSchedule(seed, m + 1, B, D).ids(k).astype(np.int64))
        us = whole(layout(networks[m]), seed_of(seed, "direction", m + 1, k))
        w = dict(networks[m].named_parameters())
        losses, hs = [], []
        for s in (lam, -lam):
            moved = {name: u * s + p.detach() for (name, p), u in zip(w.items(), us, strict=True)}
            hs.append(functional_call(networks[m], moved, (xs[m][ids],)).detach())
            rows = torch.cat([hs[-1] if j == m else h[ids] for j, h in enumerate(table)], dim=1)
            losses.append(F.cross_entropy(head(rows), y[ids], reduction="none").detach().double())
        table[m][ids] = (hs[0] + hs[1]) / 2
        Delta = float(((losses[0] - losses[1]) / (2 * lam)).sum()) * 1.0 / B
        with torch.no_grad():
            for p, u in zip(w.values(), us, strict=True):
                p.add_(u, alpha=-eta * Delta)
        Deltas.append(Delta)
    return Deltas


def train_along(
    networks: list[torch.nn.Module],
    head: torch.nn.Module,
    xs: list[torch.Tensor],
    y: torch.Tensor,
    *,
    T: int,
    B: int,
    lam: float,
    eta: float,
    seed: int,
    K: int,
) -> list[list[float]]:
    """The same with K > 1 directions a message, one-sided, everything in the precision of its arguments."""
    M, D = len(networks), len(y)
    table = [network(x).detach() for network, x in zip(networks, xs, strict=True)]
    Deltas = []
    for t in range(T):
        m, k = t % M, t // M
        ids = torch.from_numpy(BatchSchedule(seed, m + 1, B, D).ids(k).astype(np.int64))
        w, where = dict(networks[m].named_parameters()), layout(networks[m])
        us = [whole(where, seed_of(seed, "direction", m + 1, k * K + j)) for j in range(K)]

        def losses(shifts: list[torch.Tensor] | None, m: int = m, ids: torch.Tensor = ids) -> list[torch.Tensor]:
            parameters = networks[m].named_parameters()
            moved = {n: p.detach() + (lam * shifts[i] if shifts else 0) for i, (n, p) in enumerate(parameters)}
            h = functional_call(networks[m], moved, (xs[m][ids],)).detach()
            rows = torch.cat([h if j == m else other[ids] for j, other in enumerate(table)], dim=1)
            return [h, F.cross_entropy(head(rows), y[ids], reduction="none").detach().double()]

        h, f = losses(None)
        Delta = [float(((losses(u)[1] - f) / lam).sum()) / B for u in us]
        table[m][ids] = h
        with torch.no_grad():
            for i, p in enumerate(w.values()):
                p.sub_(sum(d * u[i] for d, u in zip(Delta, us, strict=True)), alpha=eta / K)
        Deltas.append(Delta)
    return Deltas
