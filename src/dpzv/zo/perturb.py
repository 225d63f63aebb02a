"""Evaluate a module at `w + offset*u` without touching `w`; move `w` along `u`. No second copy of the model.

While a module runs perturbed, each trainable parameter is a stand-in (`standin.py`) that becomes
`w + offset*u` for the operation that reads it and is dropped after it. So the extra memory of a round is what
one operation reads: one parameter tensor (for the fused operations of torch, such as an LSTM layer or
multi-head attention, the tensors of that operation). The large matrices of `Linear` and `Embedding` layers are
never copied whole: these layers work block by block. The weights are never written, so they are bit-identical
afterwards; adding `lam*u`, `-2*lam*u` and `lam*u` in place would not leave them so.

Not for concurrent use: two threads must not evaluate one module at the same time.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.zo.directions import Direction, Layout
from dpzv.zo.standin import Perturbed, StandIn, stand_ins

__all__ = ["momentum_step", "perturbed", "step", "two_point"]


FLOAT32 = torch.finfo(torch.float32).max

PARAMETER = operator.attrgetter("parameter")


def two_point(module: nn.Module, x: Tensor, u: Direction, lam: float) -> tuple[Tensor, Tensor]:
    """`module(x)` at `w + lam*u` and at `w - lam*u`, without gradients; `u` is a direction of `module`.

    Returns (h_plus, h_minus), each of the shape of `module(x)`.
    """
    h: list[Tensor] = []
    with perturbed(u, lam) as weights:
        for offset in (lam, -lam):
            weights.at(offset)
            output = module(x)
            if isinstance(output, StandIn):  # a module that returns a parameter as it is
                output = weights.whole(output.i)
            if not isinstance(output, Tensor):
                raise ConfigError(
                    f"{type(module).__name__} must return one tensor, got {type(output).__name__}; wrap it in a module "
                    "that returns its embeddings."
                )
            h.append(output)
    return h[0], h[1]


@contextmanager
def perturbed(u: Direction, offset: float) -> Iterator[Perturbed]:
    """Inside the block, calls of `u`'s module are at `w + offset*u`, without gradients; `offset` is +-`lam`.

    A block that ends without having read every trainable parameter is refused: a parameter that was not read would
    stay unperturbed in the difference but move in the step.
    """
    where = u.layout
    weights = Perturbed(u, offset, unread=set(range(len(where.parameters))))
    try:
        _put(where, stand_ins(weights))
        with torch.no_grad():
            yield weights
    finally:
        _put(where, where.parameters)
    if weights.unread:
        unread = ", ".join(where.names[i] for i in sorted(weights.unread))
        raise ConfigError(
            f"the forward must use every trainable parameter, but it did not use {unread}; "
            "set requires_grad to False there."
        )


def _put(where: Layout, values: Sequence[Tensor]) -> None:
    """Set the parameters to `values`, in every place where they are owned."""
    for owner, name, i in where.places:
        if type(owner).__setattr__ is nn.Module.__setattr__:
            owner._parameters[name] = values[i]  # type: ignore[assignment]  # a stand-in passes for a parameter
        else:  # a class that keeps its own list of parameters (RNNs) learns of a change through its __setattr__
            setattr(owner, name, values[i])


@torch.no_grad()
def step(u: Direction, coefficient: float) -> None:
    """`w -= coefficient * u` in place (`coefficient = eta_m * Delta`), holding one block of `u` at a time.

    A coefficient of 0 leaves every weight bit-identical (subtracting 0*u would turn some -0.0 into 0.0).
    """
    if not math.isfinite(coefficient):
        raise ConfigError(f"the coefficient of a step must be finite, got {coefficient}; check eta_m and Delta.")
    if coefficient:
        _add(u.layout.parameters, u, -coefficient)


@torch.no_grad()
def momentum_step(velocity: list[Tensor], u: Direction, Delta: float, *, eta: float, momentum: float) -> None:
    """`v = momentum*v + Delta*u`, then `w -= eta*v`, both in place.

    `velocity` has one tensor for each trainable parameter in the order of `layout` (zeros before the first
    round), so momentum costs one model of memory. It is post-processing of `Delta`, so it costs no budget. With
    `Delta = 0` the weights still move by the velocity; with `eta = 0` they stay as they are.
    """
    if not math.isfinite(Delta):
        raise ConfigError(f"Delta must be finite, got {Delta}; check what the server sent.")
    parameters = u.layout.parameters
    shapes = list(map(Tensor.size, velocity))
    if shapes != list(map(Tensor.size, parameters)):
        raise ConfigError(
            f"the velocity must have the shapes of {', '.join(u.layout.names)}, got {shapes}; start with zeros."
        )
    torch._foreach_mul_(velocity, momentum)
    _add(velocity, u, Delta)
    if eta:
        torch._foreach_sub_(parameters, velocity, alpha=eta)


def _add(tensors: list[Tensor], u: Direction, factor: float) -> None:
    """Add `factor * u` in place to tensors shaped like the parameters, one block at a time."""
    factor = factor if abs(factor) <= FLOAT32 else math.copysign(math.inf, factor)  # torch refuses a larger one
    for block in u.layout.blocks:
        if block.shared:
            some = list(map(tensors.__getitem__, map(PARAMETER, block.pieces)))
            torch._foreach_add_(some, u.shared(block), alpha=factor)
            continue
        piece, tensor = block.pieces[0], tensors[block.pieces[0].parameter]
        shift = u.times(factor, block)[0].view(-1)
        if tensor.is_contiguous():
            tensor.view(-1)[piece.start : piece.stop] += shift
        else:  # costs a copy of this tensor
            flat = tensor.reshape(-1)
            flat[piece.start : piece.stop] += shift
            tensor.copy_(flat.view(tensor.shape))
