"""The trainable numbers of a module in one row, in the order in which a direction `u` draws them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpzv.rng import numbered
from dpzv.zo.directions import layout

__all__ = ["Flat"]


class Flat:
    """Where every trainable parameter of `module` lies in a row of `d` numbers.

    A row is one block of a direction after the other (`zo/directions.py`), so a direction is drawn straight into it.
    """

    def __init__(self, module: nn.Module) -> None:
        where = layout(module)
        self.d, self._sizes = where.d, [block.size for block in where.blocks]
        self._seeds = [numbered((), ("direction", block.number)) for block in where.blocks]
        begin: dict[int, int] = {}
        at = 0
        for block in where.blocks:
            for piece in block.pieces:
                begin.setdefault(piece.parameter, at)
                at += piece.stop - piece.start
        self._places = [
            (name, begin[i], begin[i] + parameter.numel(), parameter.shape)
            for i, (name, parameter) in enumerate(zip(where.names, where.parameters, strict=True))
        ]

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of rows [..., d]; each keeps the leading axes."""
        return {name: row[..., start:stop].view(*row.shape[:-1], *shape) for name, start, stop, shape in self._places}

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """One row [d] of tensors that are shaped like the parameters, in their order."""
        row = tensors[0].new_empty(self.d)
        self.put(tensors, row)
        return row

    @torch.no_grad()
    def put(self, tensors: Sequence[Tensor], row: Tensor) -> None:
        """Write tensors that are shaped like the parameters into a row."""
        for (_, start, stop, shape), tensor in zip(self._places, tensors, strict=True):
            row[start:stop].view(shape).copy_(tensor)

    @torch.no_grad()
    def take(self, row: Tensor, tensors: Sequence[Tensor]) -> None:
        """Write a row into tensors that are shaped like the parameters."""
        for (_, start, stop, shape), tensor in zip(self._places, tensors, strict=True):
            tensor.copy_(row[start:stop].view(shape))

    def draw(self, row: Tensor, seed: int, generator: torch.Generator) -> None:
        """Fill a float32 row with the standard Gaussian numbers of which the direction of this seed is made.

        The name of the stream is that of `Direction`, which draws the same numbers.
        """
        if len(self._seeds) == 1:  # nearly always, and thousands of times a second
            generator.manual_seed(self._seeds[0](seed))
            row.normal_(generator=generator)
            return
        for part, seed_of_block in zip(torch.split(row, self._sizes), self._seeds, strict=True):
            generator.manual_seed(seed_of_block(seed))
            part.normal_(generator=generator)
