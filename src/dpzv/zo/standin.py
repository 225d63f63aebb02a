"""Stand-ins for parameters: tensors without numbers that become `w + offset*u` when an operation reads them.

Because the reading itself is intercepted, it does not matter which module owns a parameter or when: tied
weights, parameters of a child read by its parent, parameter lists and modules called twice all see the same
perturbed values. What one operation read is dropped after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.zo.directions import BLOCK, Multiple, Piece

__all__ = ["StandIn", "stand_in"]


class StandIn(Tensor):
    """In place of parameter `number`; `read` says whether any operation has asked for its numbers."""

    shift: Multiple
    number: int
    read: bool

    def numbers(self) -> Tensor:
        """`w + offset*u` of the whole tensor."""
        self.read = True
        where = self.shift.layout
        w, pieces = where.parameters[self.number].detach(), where.pieces[self.number]
        if len(pieces) == 1:
            return _sum(w, self.shift.piece(pieces[0]).view(w.shape))
        out = torch.empty(w.shape, dtype=w.dtype, device=w.device)
        flat_w, flat_out = w.reshape(-1), out.view(-1)
        for piece in pieces:
            part = slice(piece.start, piece.stop)
            flat_out[part] = _sum(flat_w[part], self.shift.piece(piece))
        return out

    def comes_in_blocks(self) -> bool:
        """Whether this is a matrix over a quarter of the model, cut into several blocks of whole rows."""
        where = self.shift.layout
        w, pieces = where.parameters[self.number], where.pieces[self.number]
        return len(pieces) > 1 and 4 * w.numel() > where.d and w.ndim == 2 and w.shape[1] <= BLOCK

    def blocks(self) -> Iterator[tuple[int, int, Piece]]:
        """The blocks of such a matrix: first row, end row, and where its rows of `u` are."""
        self.read = True
        width = self.shape[1]
        for piece in self.shift.layout.pieces[self.number]:
            yield piece.start // width, piece.stop // width, piece

    def rows(self, piece: Piece) -> Tensor:
        """The rows of `offset*u` in one of `blocks`."""
        return self.shift.piece(piece).view(-1, self.shape[1])

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
        if layer is not None and len(args) > 1 and isinstance(args[1], StandIn) and args[1].comes_in_blocks():
            return layer(_numbers(args[0]), args[1], *_numbers(args[2:]), **_numbers(kwargs))
        return func(*_numbers(args), **_numbers(kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves out `func`
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise ConfigError(
            f"trainable parameters must be read by torch functions called from Python, but compiled code "
            f"read one in {func}; give the module uncompiled."
        )


def stand_in(shift: Multiple, number: int) -> StandIn:
    """The stand-in for parameter `number` of the layout, at `w + shift`."""
    w = shift.layout.parameters[number]
    made = Tensor._make_wrapper_subclass(StandIn, w.shape, dtype=w.dtype, device=w.device)
    # torch asks `_is_param` to tell parameters; plain attributes go past Tensor's own machinery
    made.__dict__.update(_is_param=True, shift=shift, number=number, read=False)
    return made


def _sum(w: Tensor, shift: Tensor) -> Tensor:
    """`w + shift` in the type of `w`; no number of it depends on how a tensor is cut."""
    total = w + shift
    return total if total.dtype == w.dtype else total.to(w.dtype)


def _numbers(arguments: Any) -> Any:
    """`arguments` with every stand-in, however deep in the containers, replaced by its numbers."""
    if isinstance(arguments, StandIn):
        return arguments.numbers()
    if type(arguments) is tuple or type(arguments) is list:
        return type(arguments)(_numbers(one) for one in arguments)
    if type(arguments) is dict:
        return {key: _numbers(one) for key, one in arguments.items()}
    return arguments


def _linear(x: Tensor, weight: StandIn, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, a block of output features at a time."""
    w = weight.shift.layout.parameters[weight.number].detach()
    out = torch.empty((*x.shape[:-1], len(w)), dtype=w.dtype, device=w.device)
    for start, stop, piece in weight.blocks():
        some = _sum(w[start:stop], weight.rows(piece))
        out[..., start:stop] = F.linear(x, some, None if bias is None else bias[start:stop])
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
    """`F.embedding`: `w`'s rows are looked up, then `offset*u` is added, a block of rows at a time."""
    if max_norm is not None:  # rows would be rescaled in place, so the operation gets a copy
        return F.embedding(x, weight.numbers(), None, max_norm, norm_type)
    w = weight.shift.layout.parameters[weight.number].detach()
    ids = x.reshape(-1)
    out = F.embedding(ids, w)
    for start, stop, piece in weight.blocks():
        here = torch.nonzero((ids >= start) & (ids < stop)).squeeze(1)
        if len(here):
            out[here] = _sum(out[here], weight.rows(piece)[ids[here] - start])
    return out.view(*x.shape, w.shape[1])


_LAYERS: dict[Callable[..., Any], Callable[..., Tensor]] = {F.embedding: _embedding, F.linear: _linear}

# what code may ask of a parameter without reading its numbers
_PROPERTIES = "device dtype grad_fn is_cpu is_cuda is_leaf is_nested is_sparse layout ndim requires_grad shape"
_METHODS = "__hash__ __len__ dim element_size is_complex is_contiguous is_floating_point numel size stride"
_METADATA: frozenset[Any] = frozenset(
    [getattr(Tensor, name).__get__ for name in _PROPERTIES.split()]
    + [getattr(Tensor, name) for name in _METHODS.split()]
)
