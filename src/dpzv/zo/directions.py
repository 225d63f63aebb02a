"""The direction `u`, uniform on the sphere of radius sqrt(d), regenerated from a seed and never stored.

`u = sqrt(d) * g / ||g||` for a standard Gaussian `g` over all trainable parameters of a module. `g` is cut
into *blocks*, each drawn with a seed of its own, so any block can be made alone: a large tensor is many
blocks of whole rows, and small tensors share one block, because one call that draws 5,000 numbers is far
cheaper than ten that draw 500. A pass over `u` holds one block of at most `BLOCK` numbers at a time, and the
last shared block, at most `SHARED` numbers.

The same seed gives the same `u` on the same kind of hardware. `u` is no secret: a device knows its seeds, and
torch's CPU generator uses 32 bits of a seed. Noise that protects anything must come from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.rng import seed_of

__all__ = ["BLOCK", "SHARED", "Direction", "Layout", "Multiple", "Piece", "layout", "scale", "slices", "whole"]

BLOCK = 1 << 20
"""The most numbers drawn at once: 4 MiB; smaller blocks would be launch-bound on an accelerator."""

SHARED = 1 << 16
"""The most numbers in a block that several tensors share."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Numbers `start:stop` (row-major) of parameter `index`, found in `block` from `offset` on."""

    index: int
    start: int
    stop: int
    block: int
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The canonical order of a module's trainable parameters, and how `u` is cut into blocks.

    `parameters` are unique (a tied one stands once, under its first name), `d` is their total size,
    `pieces[i]` covers parameter `i`, and `blocks` holds (accelerator, size) of each block.
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    d: int
    pieces: tuple[tuple[Piece, ...], ...]
    blocks: tuple[tuple[torch.device, int], ...]


def layout(module: nn.Module) -> Layout:
    """List the trainable parameters of `module` in named order; refuse a module that has none."""
    names: list[str] = []
    parameters: list[nn.Parameter] = []
    pieces: list[tuple[Piece, ...]] = []
    blocks: list[tuple[torch.device, int]] = []
    shared = -1  # the block that small tensors are being put into
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if not parameter.is_floating_point():
            raise ConfigError(
                f"parameter {name} must be a real floating-point tensor, got {parameter.dtype}; "
                "set requires_grad to False or store it as real numbers."
            )
        index, size = len(parameters), parameter.numel()
        if size > SHARED:
            pieces.append(_own_blocks(index, parameter, blocks))
        elif size:
            if shared < 0 or blocks[shared][1] + size > SHARED or blocks[shared][0] != parameter.device:
                shared = len(blocks)
                blocks.append((parameter.device, 0))
            offset = blocks[shared][1]
            pieces.append((Piece(index, 0, size, shared, offset),))
            blocks[shared] = (parameter.device, offset + size)
        else:
            pieces.append(())
        names.append(name)
        parameters.append(parameter)
    d = sum(parameter.numel() for parameter in parameters)
    if d == 0:
        raise ConfigError(
            f"{type(module).__name__} must have trainable parameters, got none; "
            "set requires_grad on some or do not train this module."
        )
    return Layout(tuple(names), tuple(parameters), d, tuple(pieces), tuple(blocks))


def _own_blocks(index: int, parameter: nn.Parameter, blocks: list[tuple[torch.device, int]]) -> tuple[Piece, ...]:
    """Blocks for one large tensor, of whole rows where a row fits, so that layers can work row by row."""
    size = parameter.numel()
    row = size // parameter.shape[0]
    step = BLOCK // row * row if row <= BLOCK else BLOCK
    pieces = []
    for start in range(0, size, step):
        stop = min(start + step, size)
        pieces.append(Piece(index, start, stop, len(blocks), 0))
        blocks.append((parameter.device, stop - start))
    return tuple(pieces)


class Direction:
    """`u` of one seed over one layout, made piece by piece when asked for.

    It keeps the last shared block, so that the many small tensors of a model are drawn once a pass.
    """

    def __init__(self, where: Layout, seed: int) -> None:
        self.layout = where
        self._seed = seed
        self._scale = scale(where, seed)
        self._generators: dict[torch.device, torch.Generator] = {}
        self._kept: tuple[int, Tensor] = (-1, torch.empty(0))

    def block(self, number: int) -> Tensor:
        """The numbers of `u` in a block: float32, flat, on its accelerator; read only where it is shared."""
        if self._kept[0] == number:
            return self._kept[1]
        u = _gaussian(self._generators, self._seed, number, *self.layout.blocks[number]).mul_(self._scale)
        if len(u) <= SHARED:
            self._kept = (number, u)
        return u


class Multiple:
    """`factor * u`, made piece by piece; the product is rounded to float32 once."""

    def __init__(self, u: Direction, factor: float) -> None:
        self.layout = u.layout
        self._u, self._factor = u, factor
        self._kept: tuple[int, Tensor] = (-1, torch.empty(0))

    def piece(self, piece: Piece) -> Tensor:
        """The numbers for `piece`: float32, flat, on the parameter's accelerator; read only."""
        if self._kept[0] != piece.block:
            block = self._u.block(piece.block)
            if len(block) > SHARED:
                return block.mul_(self._factor)
            self._kept = (piece.block, block * self._factor)
        return self._kept[1][piece.offset : piece.offset + piece.stop - piece.start]


def scale(where: Layout, seed: int) -> float:
    """sqrt(d) / ||g||, the factor from the Gaussian of `seed` to `u`; the norm is taken in float64."""
    return _scale(seed, where.d, where.blocks)


def slices(where: Layout, seed: int) -> Iterator[tuple[Piece, Tensor]]:
    """Yield every piece of `u` once, as (piece, flat float32 numbers), in canonical order."""
    u = Multiple(Direction(where, seed), 1.0)
    for pieces in where.pieces:
        for piece in pieces:
            yield piece, u.piece(piece)


def whole(where: Layout, seed: int) -> list[Tensor]:
    """All of `u`, shaped like the parameters. For oracles: it costs one model of memory."""
    made: list[list[Tensor]] = [[] for _ in where.parameters]
    for piece, values in slices(where, seed):
        made[piece.index].append(values)
    return [
        torch.cat(parts).view(parameter.shape) if parts else torch.zeros_like(parameter)
        for parts, parameter in zip(made, where.parameters, strict=True)
    ]


def _gaussian(
    generators: dict[torch.device, torch.Generator],
    seed: int,
    block: int,
    accelerator: torch.device,
    size: int,
) -> Tensor:
    """Block `block` of `g`; `generators` holds one generator an accelerator, made when first needed."""
    if accelerator not in generators:
        generators[accelerator] = torch.Generator(device=accelerator)
    generators[accelerator].manual_seed(seed_of(seed, "direction", block))
    return torch.randn(size, generator=generators[accelerator], device=accelerator)


# One number per recent direction is remembered, so that the step after an evaluation needs no second pass.
@lru_cache(maxsize=64)
def _scale(seed: int, d: int, blocks: tuple[tuple[torch.device, int], ...]) -> float:
    generators: dict[torch.device, torch.Generator] = {}
    squares = 0.0
    for block, (accelerator, size) in enumerate(blocks):
        g = _gaussian(generators, seed, block, accelerator, size)
        squares += float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2
    return math.sqrt(d / squares)
