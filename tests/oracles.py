"""All of a direction at once, for oracles: it costs one model of memory, which the package never spends."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dpzv.zo.directions import Direction, Layout, Piece, layout


def direction(module: nn.Module, seed: int) -> Direction:
    """`u` of `seed` over the trainable parameters of `module`."""
    return Direction(layout(module), seed)


def slices(where: Layout, seed: int) -> Iterator[tuple[Piece, Tensor]]:
    """Yield every piece of `u` once, with its numbers: float32, on the parameter's accelerator."""
    u = Direction(where, seed)
    for block in where.blocks:
        for piece, numbers in zip(block.pieces, u.times(1.0, block), strict=True):
            yield piece, numbers if block.shared else numbers.clone()


def whole(where: Layout, seed: int) -> list[Tensor]:
    """All of `u`, shaped like the parameters."""
    made = [torch.empty(parameter.shape, device=parameter.device) for parameter in where.parameters]
    for piece, numbers in slices(where, seed):
        made[piece.parameter].view(-1)[piece.start : piece.stop] = numbers.view(-1)
    return made
