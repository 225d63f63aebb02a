"""Algorithm 1 without noise and clip, in one place: no messages, no table machine, no ledger. An oracle."""

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
