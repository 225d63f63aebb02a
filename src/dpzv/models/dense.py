"""Device networks for tables: maps from a device's features [B, d] to embeddings [B, k], each record by itself.

Starts of all device networks are random from an explicit generator, and scaled by public constants so that
embeddings have a standard deviation of about 1 over records: a head learns poorly from embeddings that are ten
times smaller, and measuring the scale would look at the data.
"""

from __future__ import annotations

import torch
from torch import nn

from dpzv.models import NetworkRequest
from dpzv.models.layers import he, linear_layer

__all__ = ["linear", "make_linear", "make_mlp", "mlp"]


def linear(inputs: int, embedding: int, generator: torch.Generator) -> nn.Linear:
    """One linear map; its start keeps the size of a record, so inputs of deviation 1 stay there."""
    return linear_layer(he((embedding, inputs), generator, gain=1.0))


def mlp(inputs: int, hidden: int, embedding: int, generator: torch.Generator) -> nn.Sequential:
    """Linear, ReLU, linear: a tabular network."""
    return nn.Sequential(
        linear_layer(he((hidden, inputs), generator)),
        nn.ReLU(),
        linear_layer(he((embedding, hidden), generator, gain=1.0)),
    )


def make_linear(wanted: NetworkRequest) -> nn.Linear:
    """`linear`, as asked for."""
    return linear(wanted.inputs, wanted.embedding, wanted.generator)


def make_mlp(wanted: NetworkRequest) -> nn.Sequential:
    """`mlp`, as asked for."""
    return mlp(wanted.inputs, wanted.hidden, wanted.embedding, wanted.generator)
