"""Layers that start from an explicit generator, and which of them are trained (`devices.last_layers`).

Nothing here touches torch's global random state.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from dpzv.errors import ConfigError

__all__ = ["MappedFeatures", "conv", "he", "linear_layer", "orthogonal", "projection", "train_last"]


class MappedFeatures(nn.Module):
    """Layers that turn records [B, d] into `features` [B, n], and a linear map `out` from these to embeddings.

    Where the map alone is trained, the features of a record are computed once (`runtime/computed_once.py`) and take the
    record's place. They are then [B, n, 1]: the third dimension tells them from records.
    """

    out: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """The input [B, n] of the map, for records [B, d]."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, embedding] of records [B, d], or of their features [B, n, 1]."""
        embeddings: Tensor = self.out(x.squeeze(2) if x.ndim == 3 else self.features(x))
        return embeddings


def linear_layer(weight: Tensor) -> nn.Linear:
    """A linear layer with this weight [outputs, inputs] and a bias of zeros."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")  # torch draws no random weights on "meta"
    layer.weight, layer.bias = nn.Parameter(weight.contiguous()), nn.Parameter(torch.zeros(len(weight)))
    return layer


def conv(weight: Tensor, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """A convolution with this weight [outputs, inputs, k, k], zeros around the image, and a bias of zeros.

    With `stride` 1 and odd k the output is as large as the input. A norm after the layer makes a bias useless.
    """
    outputs, inputs, k, _ = weight.shape
    layer = nn.Conv2d(inputs, outputs, k, stride=stride, padding=k // 2, bias=bias, device="meta")
    layer.weight = nn.Parameter(weight.contiguous())
    if bias:
        layer.bias = nn.Parameter(torch.zeros(outputs))
    return layer


def he(shape: tuple[int, ...], generator: torch.Generator, gain: float = math.sqrt(2)) -> Tensor:
    """Gaussian weights of standard deviation gain / sqrt(inputs); sqrt(2) keeps the scale through a ReLU."""
    return torch.randn(shape, generator=generator) * (gain / math.sqrt(math.prod(shape[1:])))


def orthogonal(outputs: int, inputs: int, generator: torch.Generator) -> Tensor:
    """A random matrix [outputs, inputs] with orthonormal rows, or orthonormal columns if it is taller than wide."""
    tall = torch.randn(max(outputs, inputs), min(outputs, inputs), generator=generator)
    q: Tensor
    q, r = torch.linalg.qr(tall)
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0)  # makes it uniform over all such matrices
    return q.T.contiguous() if outputs < inputs else q


def projection(outputs: int, inputs: int, generator: torch.Generator) -> Tensor:
    """The identity where both sides are equally wide, else a random orthogonal matrix [outputs, inputs]."""
    return torch.eye(inputs) if outputs == inputs else orthogonal(outputs, inputs, generator)


def train_last(network: nn.Module, n: int) -> None:
    """Let only the last `n` layers be trained; with 0 every parameter stays as it is.

    A layer is a module that holds parameters itself. A network with a method `layers` lists its own, first to last;
    the modules of one entry belong together.
    """
    if n == 0:
        return
    listed = getattr(network, "layers", None)
    layers: list[list[nn.Module]] = listed() if listed else [[part] for part in network.modules() if part._parameters]
    if not 0 < n <= len(layers):
        raise ConfigError(
            f"devices.last_layers must be from 0 (all) to the {len(layers)} layers of this network, got {n}; lower it."
        )
    network.requires_grad_(False)
    for part in itertools.chain.from_iterable(layers[-n:]):
        part.requires_grad_(True)
