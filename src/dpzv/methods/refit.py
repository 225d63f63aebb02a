"""The head that stays at home: once the last Delta is out, a second head is fitted without noise.

Nothing leaves the server any more, so this costs no budget against devices. The refitted head is never
used for a release and never published.
"""

from __future__ import annotations

import math

import torch

from dpzv.models.losses import Loss
from dpzv.rng import torch_generator

__all__ = ["refit"]


def refit(
    head: torch.nn.Module,
    rows: torch.Tensor,
    y: torch.Tensor,
    loss: Loss,
    *,
    epochs: int,
    batch: int,
    eta: float,
    seed: int,
) -> None:
    """Fit `head` in place to `rows` [D, K] and `y` by Adam, its step falling to 0 along a cosine."""
    D = rows.shape[0]
    steps = epochs * math.ceil(D / batch)
    adam = torch.optim.Adam(head.parameters(), lr=eta)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for epoch in range(epochs):
        order = torch.randperm(D, generator=torch_generator(seed, "refit", epoch)).to(rows.device)
        for start in range(0, D, batch):
            ids = order[start : start + batch]
            adam.zero_grad()
            with torch.enable_grad():
                loss(head(rows[ids]), y[ids]).mean().backward()  # type: ignore[no-untyped-call]
            adam.step()
            decay.step()
