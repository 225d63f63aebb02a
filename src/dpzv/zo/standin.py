"""Stand-ins for parameters: tensors without numbers that become `w + offset*u` when an operation reads them.

Because the reading itself is intercepted, it does not matter which module owns a parameter or when: tied
weights, parameters of a child read by its parent, parameter lists and modules called twice all see the same
perturbed values. What one operation read is dropped after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.zo.directions import Direction

__all__ = ["Perturbed", "StandIn", "stand_ins"]


@dataclass(slots=True, eq=False)
class Perturbed:
    """The trainable parameters at `w + offset*u`, made when they are read; `unread` are those that were never read."""

    u: Direction
    offset: float
    unread: set[int]
    _kept: dict[int, Tensor] = field(default_factory=dict)  # the parameters of the last shared block

    def at(self, offset: float) -> None:
        """From now on, let the parameters be `w + offset*u`."""
        self.offset, self._kept = offset, {}

    def whole(self, i: int) -> Tensor:
        """Parameter `i`, perturbed."""
        self.unread.discard(i)
        if i in self._kept:
            return self._kept[i]
        block = self.u.layout.spans[i][0]
        if not block.shared:
            return self._large(i)
        # all parameters of the block are made in a few operations: one by one would cost more than a small layer
        made = torch._foreach_add(block.parameters, self.u.times(self.offset, block))
        self._kept = {}
        for piece, w, one in zip(block.pieces, block.parameters, made, strict=True):
            self._kept[piece.parameter] = one.detach().to(w.dtype)  # a forward may have switched gradients on
        return self._kept[i]

    def _large(self, i: int) -> Tensor:
        w = self.u.layout.parameters[i].detach()
        out = torch.empty(w.shape, dtype=w.dtype, device=w.device)
        flat_w, flat_out = w.reshape(-1), out.view(-1)
        for block in self.u.layout.spans[i]:
            part = slice(block.pieces[0].start, block.pieces[0].stop)
            torch.add(flat_w[part], self.u.times(self.offset, block)[0].view(-1), out=flat_out[part])
        return out

    def row_blocks(self, i: int) -> Iterator[tuple[int, int, Tensor]]:
        """First row, end row and shift `offset*u` of each block of matrix `i`; the next block overwrites the shift."""
        self.unread.discard(i)
        width = self.u.layout.parameters[i].shape[1]
        for block in self.u.layout.spans[i]:
            piece = block.pieces[0]
            yield piece.start // width, piece.stop // width, self.u.times(self.offset, block)[0].view(-1, width)


class StandIn(Tensor):
    """Stands in for parameter `i`. `by_rows` says that it is a matrix of several blocks, each of whole rows."""

    made: Perturbed
    i: int
    by_rows: bool

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        named = dict(zip(kwargs, _numbers(kwargs.values()), strict=True)) if kwargs else {}
        layer = _LAYERS.get(func)
        if layer is not None and len(args) > 1 and type(args[1]) is StandIn and args[1].by_rows:
            return layer(*_numbers(args[:1]), args[1], *_numbers(args[2:]), **named)
        return func(*_numbers(args), **named)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves out `func`
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise ConfigError(
            f"trainable parameters must be read by torch functions called from Python, but compiled code "
            f"read one in {func}; give the module uncompiled."
        )


def stand_ins(made: Perturbed) -> list[StandIn]:
    """A stand-in for each parameter, which gets its numbers from `made`."""
    found = []
    for i, (w, blocks) in enumerate(zip(made.u.layout.parameters, made.u.layout.spans, strict=True)):
        by_rows = len(blocks) > 1 and w.ndim == 2 and blocks[0].size % w.shape[1] == 0
        one = Tensor._make_wrapper_subclass(StandIn, w.shape, dtype=w.dtype, device=w.device)
        # torch recognises parameters by `_is_param`; writing to `__dict__` avoids Tensor's own attribute setter
        one.__dict__.update(_is_param=True, made=made, i=i, by_rows=by_rows)
        found.append(one)
    return found


def _numbers(arguments: Iterable[Any]) -> list[Any]:
    """`arguments` with every stand-in, however deep in the containers, replaced by its numbers."""
    found = []
    for one in arguments:
        kind = type(one)
        if kind is StandIn:
            one = one.made.whole(one.i)
        elif kind is tuple or kind is list:
            one = kind(_numbers(one))
        elif kind is dict:
            one = dict(zip(one, _numbers(one.values()), strict=True))
        found.append(one)
    return found


def _linear(x: Tensor, weight: StandIn, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, a block of output features at a time."""
    w = weight.made.u.layout.parameters[weight.i].detach()
    out = torch.empty((*x.shape[:-1], len(w)), dtype=w.dtype, device=w.device)
    for start, stop, shift in weight.made.row_blocks(weight.i):
        out[..., start:stop] = F.linear(x, _sum(w[start:stop], shift), None if bias is None else bias[start:stop])
    return out


def _embedding(
    x: Tensor,
    weight: StandIn,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`F.embedding`: `w`'s rows are looked up, then the shift is added, a block of rows at a time."""
    if max_norm is not None:  # rows would be rescaled in place, so the operation gets a copy
        return F.embedding(x, weight.made.whole(weight.i), None, max_norm, norm_type)
    w = weight.made.u.layout.parameters[weight.i].detach()
    ids = x.reshape(-1)
    out = F.embedding(ids, w)
    for start, stop, shift in weight.made.row_blocks(weight.i):
        here = torch.nonzero((ids >= start) & (ids < stop)).squeeze(1)
        if len(here):
            out[here] = _sum(out[here], shift[ids[here] - start])
    return out.view(*x.shape, w.shape[1])


def _sum(w: Tensor, shift: Tensor) -> Tensor:
    """`w + shift` in the type of `w`, in the memory of `shift` where it can hold the result."""
    return w + shift if w.dtype == torch.float64 else shift.add_(w).to(w.dtype)


_LAYERS: dict[Callable[..., Any], Callable[..., Tensor]] = {F.embedding: _embedding, F.linear: _linear}

# what code may ask of a parameter without reading its numbers
_PROPERTIES = "device dtype grad_fn is_cpu is_cuda is_leaf is_nested is_sparse layout ndim requires_grad shape"
_METHODS = "__hash__ __len__ dim element_size is_complex is_contiguous is_floating_point numel size stride"
_METADATA: frozenset[Any] = frozenset(
    [getattr(Tensor, name).__get__ for name in _PROPERTIES.split()]
    + [getattr(Tensor, name) for name in _METHODS.split()]
)
