"""Device networks for tables: maps from a device's features [B, d] to embeddings [B, k], each record by itself.

Starts of all device networks are random from an explicit generator, and scaled by public constants so that
embeddings have a standard deviation of about 1 over records: a head learns poorly from embeddings that are ten
times smaller, and measuring the scale would look at the data.
"""

from __future__ import annotations

from torch import nn

from dpzv.models import NetworkRequest
from dpzv.models.layers import he, linear_layer

__all__ = ["make_linear", "make_mlp"]


def make_linear(wanted: NetworkRequest) -> nn.Linear:
    """One linear map; its start keeps the size of a record, so inputs of deviation 1 give embeddings of deviation 1."""
    return linear_layer(he((wanted.embedding, wanted.inputs), wanted.generator, gain=1.0))


def make_mlp(wanted: NetworkRequest) -> nn.Sequential:
    """Linear, ReLU, linear."""
    first = linear_layer(he((wanted.hidden, wanted.inputs), wanted.generator))
    return nn.Sequential(
        first, nn.ReLU(), linear_layer(he((wanted.embedding, wanted.hidden), wanted.generator, gain=1.0))
    )
