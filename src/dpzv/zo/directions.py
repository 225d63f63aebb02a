"""The direction `u`, uniform on the sphere of radius sqrt(d), regenerated from a seed and never stored.

`u = sqrt(d) * g / ||g||` for a standard Gaussian `g` over all trainable parameters of a module. `g` is cut
into *blocks*, each drawn with a seed of its own, so any block can be made alone: a large tensor is many
blocks of whole rows, and small tensors share one block, because one call that draws 5,000 numbers is far
cheaper than ten that draw 500. A pass over `u` holds one block at a time, and the last shared block, at
most `SHARED` numbers.

The same seed gives the same `u` on the same kind of hardware. `u` is no secret: a device knows its seeds, and
torch's CPU generator uses 32 bits of a seed. Noise that protects anything must come from elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.rng import seed_of

__all__ = [
    "ACCELERATOR_BLOCK",
    "BLOCK",
    "SHARED",
    "Block",
    "Direction",
    "Layout",
    "Piece",
    "direction",
    "layout",
    "slices",
    "whole",
]

BLOCK = 1 << 18
"""The most numbers drawn at once on a CPU: 1 MiB, which stays in its cache."""

ACCELERATOR_BLOCK = 1 << 22
"""The most numbers drawn at once elsewhere: 16 MiB; the launches of many small blocks would cost more."""

SHARED = 1 << 16
"""The most numbers in a block that several tensors share."""


class Piece(NamedTuple):
    """Numbers `start:stop` (row-major) of parameter `parameter` of a layout.

    `shape` is that of the parameter if the piece is all of it, else (stop - start,).
    """

    parameter: int
    start: int
    stop: int
    shape: tuple[int, ...]


class Block(NamedTuple):
    """Numbers of `u` that are drawn together: part of one large tensor, or several whole small ones.

    The pieces lie behind one another. All of a block is on one accelerator and belongs to parameters of one type.
    """

    number: int
    accelerator: torch.device
    size: int
    pieces: list[Piece]
    shared: bool


class Layout(NamedTuple):
    """The canonical order of a module's trainable parameters, and how `u` is cut into blocks.

    `parameters` are unique (a tied one stands once, under its first name) and `d` is their total size;
    `places` lists every module that owns one, as (module, name in it, number of the parameter);
    `spans[i]` are the numbers of the `blocks` that hold parameter `i`.
    """

    names: list[str]
    parameters: list[Tensor]
    places: list[tuple[nn.Module, str, int]]
    d: int
    blocks: list[Block]
    spans: list[range]


def layout(module: nn.Module) -> Layout:
    """List the trainable parameters of `module` in named order; refuse a module that has none."""
    names: list[str] = []
    parameters: list[Tensor] = []
    places: list[tuple[nn.Module, str, int]] = []
    numbers: dict[Tensor, int] = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if parameter is None or not parameter.requires_grad:
                continue
            number = numbers.setdefault(parameter, len(parameters))
            if number == len(parameters):
                names.append(f"{prefix}.{name}" if prefix else name)
                parameters.append(parameter)
                if not parameter.is_floating_point():
                    raise ConfigError(
                        f"parameter {names[-1]} must hold real floating-point numbers, got {parameter.dtype}; "
                        "set requires_grad to False there."
                    )
            places.append((owner, name, number))
    sizes = [parameter.numel() for parameter in parameters]
    if not any(sizes):
        raise ConfigError(
            f"{type(module).__name__} must have trainable parameters, got none; "
            "set requires_grad on some or leave it out of training."
        )
    return Layout(names, parameters, places, sum(sizes), *_cut(parameters, sizes))


def _cut(parameters: list[Tensor], sizes: list[int]) -> tuple[list[Block], list[range]]:
    """The blocks, and for each parameter the numbers of its blocks."""
    blocks: list[Block] = []
    spans = [range(0)] * len(parameters)
    waiting: list[int] = []  # small parameters on their way into one shared block
    room = 0
    for i, parameter in enumerate(parameters):
        if sizes[i] > SHARED:
            first = len(blocks)
            blocks += _own_blocks(i, parameter, first)
            spans[i] = range(first, len(blocks))
            continue
        like = parameters[waiting[0]] if waiting else parameter
        if sizes[i] > room or parameter.device != like.device or parameter.dtype != like.dtype:
            _share(waiting, parameters, blocks, spans)
            room = SHARED
        waiting.append(i)
        room -= sizes[i]
    _share(waiting, parameters, blocks, spans)
    return blocks, spans


def _share(waiting: list[int], parameters: list[Tensor], blocks: list[Block], spans: list[range]) -> None:
    """Put the waiting parameters into one new block."""
    if waiting:
        pieces = [Piece(i, 0, parameters[i].numel(), parameters[i].shape) for i in waiting]
        size = sum(piece.stop for piece in pieces)
        for i in waiting:
            spans[i] = range(len(blocks), len(blocks) + 1)
        blocks.append(Block(len(blocks), parameters[waiting[0]].device, size, pieces, shared=True))
        waiting.clear()


def _own_blocks(i: int, parameter: Tensor, first: int) -> list[Block]:
    """Blocks for one large tensor, of whole rows where a row fits, so that layers can work row by row."""
    size = parameter.numel()
    row = size // parameter.shape[0]
    most = BLOCK if parameter.device.type == "cpu" else ACCELERATOR_BLOCK
    step = most // row * row if row <= most else most
    pieces = [
        Piece(i, start, stop, parameter.shape if stop - start == size else (stop - start,))
        for start, stop in itertools.pairwise([*range(0, size, step), size])
    ]
    return [
        Block(first + k, parameter.device, piece.stop - piece.start, [piece], shared=False)
        for k, piece in enumerate(pieces)
    ]


class Direction:
    """`u` of one seed over one layout, made block by block when asked for.

    It keeps the last shared block, so that the many small tensors of a model are drawn once a pass. All other
    blocks are drawn into the same memory: allocating each anew would leave holes that cost more than a block.
    `scale` is sqrt(d) / ||g||, the norm taken in float64: a pass over `u`, so the step after an evaluation is given the
    same object again.
    """

    def __init__(self, where: Layout, seed: int) -> None:
        self.layout = where
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._room: dict[torch.device, Tensor] = {}
        self._kept: tuple[int, list[Tensor]] = (-1, [])
        self.scale = self._find_scale()

    def times(self, factor: float, block: Block) -> tuple[Tensor, ...]:
        """`factor * u` for each piece of `block`: float32, rounded once after `u`.

        A piece that is a whole parameter has its shape; a part of one is flat. The caller may change the
        numbers, and has to use them before the next call if the block is not shared.
        """
        if not block.shared:
            return (self._gaussian(block).mul_(self.scale).mul_(factor).view(block.pieces[0].shape),)
        return torch._foreach_mul(self.shared(block), factor)

    def shared(self, block: Block) -> list[Tensor]:
        """`u` for each piece of a shared block, not to be changed."""
        if self._kept[0] != block.number:
            self._keep(block, self._gaussian(block), self.scale)
        return self._kept[1]

    def release(self) -> None:
        """Give back the memory of large blocks; they are drawn anew if they are asked for again."""
        self._room = {}

    def _keep(self, block: Block, g: Tensor, scale: float) -> None:
        parts = g.mul_(scale).split_with_sizes([piece.stop - piece.start for piece in block.pieces])
        self._kept = block.number, [part.view(piece.shape) for part, piece in zip(parts, block.pieces, strict=True)]

    def _find_scale(self) -> float:
        squares = 0.0
        for block in self.layout.blocks:
            g = self._gaussian(block)
            squares += _square(g)
        scale = math.sqrt(self.layout.d / squares)
        if block.shared:  # the last block need not be drawn again
            self._keep(block, g, scale)
        return scale

    def _gaussian(self, block: Block) -> Tensor:
        generator = self._generators.get(block.accelerator)
        if generator is None:
            generator = self._generators[block.accelerator] = torch.Generator(device=block.accelerator)
        generator.manual_seed(seed_of(self._seed, "direction", block.number))
        if block.shared:
            return torch.randn(block.size, generator=generator, device=block.accelerator)
        room = self._room.get(block.accelerator)
        if room is None:
            largest = max(b.size for b in self.layout.blocks if b.accelerator == block.accelerator)
            room = self._room[block.accelerator] = torch.empty(largest, device=block.accelerator)
        return room[: block.size].normal_(generator=generator)


def direction(module: nn.Module, seed: int) -> Direction:
    """`u` of `seed` over the trainable parameters of `module`."""
    return Direction(layout(module), seed)


def _square(g: Tensor) -> float:
    """||g||^2 in float64; a CPU would convert all of `g` at once, so it gets parts."""
    parts = torch.split(g, SHARED) if g.device.type == "cpu" else (g,)
    return sum((float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in parts), 0.0)


def slices(where: Layout, seed: int) -> Iterator[tuple[Piece, Tensor]]:
    """Yield every piece of `u` once, with its numbers: float32, on the parameter's accelerator."""
    u = Direction(where, seed)
    for block in where.blocks:
        for piece, numbers in zip(block.pieces, u.times(1.0, block), strict=True):
            yield piece, numbers if block.shared else numbers.clone()


def whole(where: Layout, seed: int) -> list[Tensor]:
    """All of `u`, shaped like the parameters. For oracles: it costs one model of memory."""
    made = [torch.empty(parameter.shape, device=parameter.device) for parameter in where.parameters]
    for piece, numbers in slices(where, seed):
        made[piece.parameter].view(-1)[piece.start : piece.stop] = numbers.view(-1)
    return made
