"""The row rule for networks: the output of a record may depend on that record alone.

Where it fails, one record moves the terms of a whole batch, and no clip bounds what it reveals.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from dpzv.errors import ConfigError

__all__ = ["require_rowwise"]


@torch.no_grad()
def require_rowwise(module: nn.Module, example: Tensor, *, name: str) -> int:
    """Refuse a network that mixes the records of a batch or is random; return its embedding width k.

    `module` should be in evaluation mode already; `example` [n, ...] is a small batch of at least two records
    in the shape and type of the real ones, on the module's accelerator. Batch normalisation on batch statistics
    and active dropout are refused by name. Anything else is found by a probe: replacing one row must leave all
    other rows' outputs [n, k] bit-equal. The probe tries a few rows; it is evidence, not a proof.
    """
    for part, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            _refuse(name, f"{part or 'it'} is batch normalisation over the batch's own statistics")
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            _refuse(name, f"{part or 'it'} is dropout in training mode, which differs between two evaluations")
    if len(example) < 2:
        raise ConfigError(f"the row probe of {name} needs at least 2 records, got {len(example)}; give more.")
    try:
        output = module(example)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"the network of {name} must take records of shape {tuple(example.shape[1:])} and type {example.dtype}, "
            f"but failed on them ({reason}); match its input to the device's columns."
        ) from error
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(example):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(
            f"the network of {name} must turn {len(example)} records into embeddings [{len(example)}, k], "
            f"got {shape}; return one row a record."
        )
    if not _same(module(example), output):
        _refuse(name, "two evaluations of the same records differ")
    for row in sorted({0, len(example) // 2, len(example) - 1}):
        others = torch.arange(len(example), device=example.device) != row
        for replaced in _replacements(example, row):
            if not _same(module(replaced)[others], output[others]):
                _refuse(name, f"replacing record {row} of a batch changes the embeddings of other records")
    return output.shape[1]


def _replacements(example: Tensor, row: int) -> Iterator[Tensor]:
    """The batch with `row` replaced by another record, by zeros and, if values are floats, by large numbers."""
    values = [example[row - 1], torch.zeros_like(example[row])]
    if example.is_floating_point():
        values.append(torch.full_like(example[row], 1e3))
    for value in values:
        replaced = example.clone()
        replaced[row] = value
        yield replaced


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both are bit-equal, so that NaN equals itself."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _refuse(name: str, reason: str) -> None:
    raise ConfigError(
        f"the network of {name} must treat every record by itself, but {reason}; "
        "call eval() on it or use layers that work within a record, such as LayerNorm."
    )
