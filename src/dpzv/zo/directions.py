"""The direction `u`, uniform on the sphere of radius sqrt(d), regenerated from a seed and never stored.

`u = sqrt(d) * g / ||g||` for a standard Gaussian `g` over all trainable parameters of a module. `g` is cut
into *blocks*, each drawn with a seed of its own, so any block can be made alone: a large tensor is many
blocks of whole rows, and small tensors share one block, because one call that draws 5,000 numbers is far
cheaper than ten that draw 500. A pass over `u` holds one block at a time, and the last shared block, which has at
most `SHARED` numbers. The order of the parameters, the sizes of the blocks and their numbers are a format: they decide
which `u` a seed gives.

The same seed gives the same `u` on the same kind of hardware. `u` is no secret: a device knows its seeds, and
torch's CPU generator uses 32 bits of a seed. Noise that protects anything must come from elsewhere.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C._nn import unflatten_dense_tensors

from dpzv.errors import ConfigError
from dpzv.rng import seed_of

__all__ = ["BLOCK", "SHARED", "Block", "Direction", "Layout", "Piece", "layout"]

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
    """Numbers of `u` that are drawn together: part of one large tensor, or (`shared`) several whole small ones.

    The pieces follow one another, and `parameters` holds the parameter of each. A block lies on one accelerator and
    belongs to parameters of one type.
    """

    number: int
    accelerator: torch.device
    size: int
    pieces: list[Piece]
    parameters: list[Tensor]
    shared: bool


class Layout(NamedTuple):
    """The canonical order of a module's trainable parameters, and how `u` is cut into blocks.

    `parameters` are unique (a tied one is listed once, under its first name) and `d` is their total size;
    `places` lists every module that owns one, as (module, name in it, number of the parameter);
    `spans[i]` are the `blocks` that hold parameter `i`.
    """

    names: list[str]
    parameters: list[Tensor]
    places: list[tuple[nn.Module, str, int]]
    d: int
    blocks: list[Block]
    spans: list[list[Block]]


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


def _cut(parameters: list[Tensor], sizes: list[int]) -> tuple[list[Block], list[list[Block]]]:
    """The blocks, and for each parameter the blocks that hold it."""
    blocks: list[Block] = []
    spans: list[list[Block]] = [[] for _ in parameters]
    waiting: list[int] = []  # small parameters that will share the next block
    room = 0
    for i, parameter in enumerate(parameters):
        if sizes[i] > SHARED:
            spans[i] = _own_blocks(i, parameter, len(blocks))
            blocks += spans[i]
            continue
        like = parameters[waiting[0]] if waiting else parameter
        if sizes[i] > room or parameter.device != like.device or parameter.dtype != like.dtype:
            _share(waiting, parameters, blocks, spans)
            room = SHARED
        waiting.append(i)
        room -= sizes[i]
    _share(waiting, parameters, blocks, spans)
    return blocks, spans


def _share(waiting: list[int], parameters: list[Tensor], blocks: list[Block], spans: list[list[Block]]) -> None:
    """Put the waiting parameters into one new block."""
    if waiting:
        members = [parameters[i] for i in waiting]
        pieces = [Piece(i, 0, one.numel(), one.shape) for i, one in zip(waiting, members, strict=True)]
        size = sum(piece.stop for piece in pieces)
        blocks.append(Block(len(blocks), members[0].device, size, pieces, members, shared=True))
        for i in waiting:
            spans[i] = blocks[-1:]
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
        Block(first + k, parameter.device, piece.stop - piece.start, [piece], [parameter], shared=False)
        for k, piece in enumerate(pieces)
    ]


class Direction:
    """`u` of one seed over one layout, made block by block when asked for.

    It keeps the last shared block, so that the many small tensors of a model are drawn once a pass. All other
    blocks are drawn into the same memory: new memory for each would leave gaps that cost more than a block.
    `scale` is sqrt(d) / ||g||, with the norm in float64. Finding it takes a pass over `u`, so the step after an
    evaluation should use the same object again.
    """

    def __init__(self, where: Layout, seed: int) -> None:
        self.layout = where
        self._seed = seed
        self._room: dict[torch.device, Tensor] = {}
        squares = 0.0
        for block in where.blocks:
            g = self._gaussian(block)
            # a CPU would convert all of `g` to float64 at once, so it is given one part after the other
            square = 0.0
            for part in torch.split(g, SHARED) if g.is_cpu else (g,):
                square += float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2
            squares += square
        self.scale = math.sqrt(where.d / squares)
        self._kept: tuple[int, list[Tensor]] = (-1, [])
        if block.shared:  # the last block need not be drawn again
            self._kept = block.number, unflatten_dense_tensors(g.mul_(self.scale), block.parameters)

    def times(self, factor: float, block: Block) -> tuple[Tensor, ...]:
        """`factor * u` for each piece of `block`: float32, rounded once after `u`.

        A piece that is a whole parameter has the parameter's shape; a part of a parameter is flat. The caller may
        change the numbers, and must use them before the next call if the block is not shared.
        """
        if block.shared:
            return torch._foreach_mul(self.shared(block), factor)
        return (self._gaussian(block).mul_(self.scale).mul_(factor).view(block.pieces[0].shape),)

    def shared(self, block: Block) -> list[Tensor]:
        """`u` for each piece of a shared block; the caller must not change the numbers."""
        if self._kept[0] != block.number:
            g = self._gaussian(block)
            self._kept = block.number, unflatten_dense_tensors(g.mul_(self.scale), block.parameters)
        return self._kept[1]

    def _gaussian(self, block: Block) -> Tensor:
        """The standard Gaussian `g` in a block, in new memory if the block is shared."""
        generator = torch.Generator(block.accelerator)
        # the name of this random stream is a format: the same seed must give the same `u` in every version
        generator.manual_seed(seed_of(self._seed, "direction", block.number))
        if block.shared:
            return torch.randn(block.size, generator=generator, device=block.accelerator)
        room = self._room.get(block.accelerator)
        if room is None:
            largest = max(b.size for b in self.layout.blocks if b.accelerator == block.accelerator)
            room = self._room[block.accelerator] = torch.empty(largest, device=block.accelerator)
        return room[: block.size].normal_(generator=generator)
