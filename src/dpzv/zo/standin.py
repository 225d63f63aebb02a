"""Stand-ins for parameters: tensors without numbers that become `w + sign*lam*u` when an operation reads them.

Because the reading itself is intercepted, it does not matter which module owns a parameter or when: tied
weights, parameters of a child read by its parent, parameter lists and modules called twice all see the same
perturbed values. What one operation read is dropped after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.zo.directions import Block, Direction

__all__ = ["Perturbed", "StandIn", "stand_in"]


class Perturbed:
    """The trainable parameters at `w + sign*lam*u`, made when asked for; small ones a shared block at a time."""

    def __init__(self, u: Direction, lam: float) -> None:
        self.layout = u.layout
        self._u, self._lam = u, lam
        self._sign = 1
        self._shift: tuple[int, tuple[Tensor, ...]] = (-1, ())  # lam*u in the last shared block
        self._kept: dict[int, Tensor] = {}  # the last shared block's parameters

    def at(self, sign: int) -> None:
        """From now on at `w + sign*lam*u`, `sign` +1 or -1; it starts with +1."""
        self._sign, self._kept = sign, {}

    def whole(self, i: int) -> Tensor:
        """Parameter `i`, perturbed."""
        made = self._kept.get(i)
        if made is not None:
            return made
        blocks = [self.layout.blocks[number] for number in self.layout.spans[i]]
        if blocks[0].shared:
            self._kept = self._share(blocks[0])
            return self._kept[i]
        w = self.layout.parameters[i].detach()
        out = torch.empty(w.shape, dtype=w.dtype, device=w.device)
        flat_w, flat_out = w.reshape(-1), out.view(-1)
        for block in blocks:
            part = slice(block.pieces[0].start, block.pieces[0].stop)
            torch.add(flat_w[part], self.shift(block).view(-1), out=flat_out[part])
        return out

    def matrix_blocks(self, i: int) -> list[Block]:
        """The blocks of a matrix that has several, each of whole rows; none for other tensors."""
        w, span = self.layout.parameters[i], self.layout.spans[i]
        if len(span) == 1 or w.ndim != 2:
            return []
        blocks = [self.layout.blocks[number] for number in span]
        whole_rows = blocks[0].size % w.shape[1] == 0
        return blocks if whole_rows else []

    def shift(self, block: Block) -> Tensor:
        """`sign*lam*u` in a block of a large tensor."""
        return self._u.times(self._sign * self._lam, block)[0]

    def _share(self, block: Block) -> dict[int, Tensor]:
        """All parameters of a shared block in few operations; tensor by tensor costs more than a small layer."""
        if self._shift[0] != block.number:
            self._shift = (block.number, self._u.times(self._lam, block))
        ws = [self.layout.parameters[piece.parameter].detach() for piece in block.pieces]
        combine = torch._foreach_add if self._sign > 0 else torch._foreach_sub
        made = combine(ws, list(self._shift[1]))
        return {piece.parameter: one.to(w.dtype) for piece, one, w in zip(block.pieces, made, ws, strict=True)}


class StandIn(Tensor):
    """In place of parameter `i`; `read` says whether any operation has asked for its numbers."""

    made: Perturbed
    i: int
    read: bool

    def numbers(self) -> Tensor:
        """The numbers of the whole tensor."""
        self.read = True
        return self.made.whole(self.i)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        layer = _LAYERS.get(func)
        if layer is not None and len(args) > 1 and type(args[1]) is StandIn:
            table, blocks = args[1], args[1].made.matrix_blocks(args[1].i)
            if blocks:
                table.read = True
                return layer(_numbers(args[0]), table, blocks, *_numbers(args[2:]), **_numbers(kwargs))
        return func(*_numbers(args), **_numbers(kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves out `func`
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise ConfigError(
            f"trainable parameters must be read by torch functions called from Python, but compiled code "
            f"read one in {func}; give the module uncompiled."
        )


def stand_in(made: Perturbed, i: int) -> StandIn:
    """The stand-in for parameter `i`, which gets its numbers from `made`."""
    w = made.layout.parameters[i]
    one = Tensor._make_wrapper_subclass(StandIn, w.shape, dtype=w.dtype, device=w.device)
    # torch asks `_is_param` to tell parameters; plain attributes go past Tensor's own machinery
    one.__dict__.update(_is_param=True, made=made, i=i, read=False)
    return one


def _numbers(arguments: Any) -> Any:
    """`arguments` with every stand-in, however deep in the containers, replaced by its numbers."""
    kind = type(arguments)
    if kind is StandIn:
        return arguments.numbers()
    if kind is tuple or kind is list:
        return kind(_numbers(one) for one in arguments)
    if kind is dict:
        return {key: _numbers(one) for key, one in arguments.items()}
    return arguments


def _linear(x: Tensor, weight: StandIn, blocks: list[Block], bias: Tensor | None = None) -> Tensor:
    """`F.linear`, a block of output features at a time."""
    w = weight.made.layout.parameters[weight.i].detach()
    out = torch.empty((*x.shape[:-1], len(w)), dtype=w.dtype, device=w.device)
    for block in blocks:
        start, stop = _rows(block, w)
        some = _sum(w[start:stop], weight.made.shift(block).view(-1, w.shape[1]))
        out[..., start:stop] = F.linear(x, some, None if bias is None else bias[start:stop])
    return out


def _embedding(
    x: Tensor,
    weight: StandIn,
    blocks: list[Block],
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding`: `w`'s rows are looked up, then the shift is added, a block of rows at a time."""
    if max_norm is not None:  # rows would be rescaled in place, so the operation gets a copy
        return F.embedding(x, weight.numbers(), None, max_norm, norm_type)
    w = weight.made.layout.parameters[weight.i].detach()
    ids = x.reshape(-1)
    out = F.embedding(ids, w)
    for block in blocks:
        start, stop = _rows(block, w)
        here = torch.nonzero((ids >= start) & (ids < stop)).squeeze(1)
        if len(here):
            out[here] = _sum(out[here], weight.made.shift(block).view(-1, w.shape[1])[ids[here] - start])
    return out.view(*x.shape, w.shape[1])


def _sum(w: Tensor, shift: Tensor) -> Tensor:
    """`w + shift` in the type of `w`, in the memory of `shift` where it can hold the result."""
    return w + shift if w.dtype == torch.float64 else shift.add_(w).to(w.dtype)


def _rows(block: Block, w: Tensor) -> tuple[int, int]:
    """First and end row of a block of a matrix."""
    return block.pieces[0].start // w.shape[1], block.pieces[0].stop // w.shape[1]


_LAYERS: dict[Callable[..., Any], Callable[..., Tensor]] = {F.embedding: _embedding, F.linear: _linear}

# what code may ask of a parameter without reading its numbers
_PROPERTIES = "device dtype grad_fn is_cpu is_cuda is_leaf is_nested is_sparse layout ndim requires_grad shape"
_METHODS = "__hash__ __len__ dim element_size is_complex is_contiguous is_floating_point numel size stride"
_METADATA: frozenset[Any] = frozenset(
    [getattr(Tensor, name).__get__ for name in _PROPERTIES.split()]
    + [getattr(Tensor, name) for name in _METHODS.split()]
)
