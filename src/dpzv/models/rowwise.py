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

LARGE = 8
"""With at least this many records several rows can be replaced at once: enough others are left to compare."""


@torch.no_grad()
def require_rowwise(module: nn.Module, example: Tensor, *, name: str) -> int:
    """Refuse a network that mixes the records of a batch or is random; return its embedding width k.

    `module` should be in evaluation mode already; `example` [n, ...] is a batch of at least two records of the size,
    shape and type of the real ones, on the accelerator of the run: another size may take another path through the
    network or through the libraries below it. Batch normalisation on batch statistics and active dropout are refused
    by name. Anything else is found by a probe: replacing the first, a middle and the last row must leave all other
    rows' outputs [n, k] bit-equal. It is evidence, not a proof.
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
    rows = sorted({0, len(example) // 2, len(example) - 1})
    # a real batch is large and its evaluation slow, so all three rows are replaced at once
    for group in [rows] if len(example) >= LARGE else [[row] for row in rows]:
        others = torch.ones(len(example), dtype=torch.bool, device=example.device)
        others[group] = False
        for replaced in _replacements(example, group):
            if not _same(module(replaced)[others], output[others]):
                some = ", ".join(map(str, group))
                _refuse(name, f"replacing records ({some}) of a batch changes the embeddings of other records")
    return output.shape[1]


def _replacements(example: Tensor, rows: list[int]) -> Iterator[Tensor]:
    """The batch with `rows` replaced by other records, by zeros and, if values are floats, by large numbers."""
    values = [example[[row - 1 for row in rows]], torch.zeros_like(example[rows])]
    if example.is_floating_point():
        values.append(torch.full_like(example[rows], 1e3))
    for value in values:
        replaced = example.clone()
        replaced[rows] = value
        yield replaced


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both are bit-equal, so that NaN equals itself."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _refuse(name: str, reason: str) -> None:
    raise ConfigError(
        f"the network of {name} must treat every record by itself, but {reason}; "
        "call eval() on it or use layers that work within a record, such as LayerNorm."
    )
