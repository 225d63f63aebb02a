"""Device networks for tables: maps from a device's features [B, d] to embeddings [B, k], each record by itself.

Starts of all device networks are random from an explicit generator, and scaled by public constants so that
embeddings have a standard deviation of about 1 over records: a head learns poorly from embeddings that are ten
times smaller, and measuring the scale would look at the data.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpzv.declarations import start_facts
from dpzv.models import NetworkRequest
from dpzv.models.layers import he, linear_layer, orthogonal

__all__ = ["PaddedLinear", "WhitenedLinear", "make_linear", "make_mlp"]


class WhitenedLinear(nn.Module):
    """A linear map of whitened columns: `linear((x - mean) @ matrix)`, where only `linear` is trained.

    Until `mean` [d] and `matrix` [d, d] are set, they change nothing. The names of the four tensors are a format.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("mean", torch.zeros(linear.in_features))
        self.register_buffer("matrix", torch.eye(linear.in_features))

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, k] of features [B, d]."""
        return F.linear(x, *self.unwhitened(self.linear.weight, self.linear.bias))

    def unwhitened(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The map of raw columns that is `weight` [n, d] and `bias` [n] of whitened ones.

        Both maps become one before it meets the records: they may be many, and the matrix is wide.
        """
        weight = weight @ self.matrix
        return weight, bias - weight @ self.mean


class PaddedLinear(nn.Linear):
    """A linear map whose outputs are followed by zeros, up to a given width.

    The zeros stay zeros: trained columns would be filled by noise alone and mislead a head that standardises columns.
    """

    def __init__(self, weight: Tensor, width: int) -> None:
        super().__init__(weight.shape[1], weight.shape[0], device="meta")
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(len(weight)))
        self._zeros = width - len(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, width] of features [B, d]."""
        return F.pad(F.linear(x, self.weight, self.bias), (0, self._zeros))


def make_linear(wanted: NetworkRequest) -> nn.Linear | WhitenedLinear:
    """One linear map; its start keeps the size of a record, so inputs of deviation 1 give embeddings of deviation 1.

    The start `columns` is random only where the embedding is narrower than the columns. Else it is the identity: the
    first numbers of an embedding are the columns themselves, and the others stay 0.
    """
    k, d = wanted.embedding, wanted.inputs
    if start_facts(wanted.start).columns:
        return PaddedLinear(torch.eye(d) if k >= d else orthogonal(k, d, wanted.generator), k)
    linear = linear_layer(he((k, d), wanted.generator, gain=1.0))
    return WhitenedLinear(linear) if start_facts(wanted.start).whitens else linear


def make_mlp(wanted: NetworkRequest) -> nn.Sequential:
    """Linear, ReLU, linear."""
    first = linear_layer(he((wanted.hidden, wanted.inputs), wanted.generator))
    return nn.Sequential(
        first, nn.ReLU(), linear_layer(he((wanted.embedding, wanted.hidden), wanted.generator, gain=1.0))
    )
