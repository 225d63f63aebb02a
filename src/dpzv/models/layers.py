"""Layers that start from an explicit generator, and which of them are trained (`devices.last_layers`).

Nothing here touches torch's global random state.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dpzv.errors import ConfigError

__all__ = ["Layered", "conv", "he", "linear_layer", "orthogonal", "train_last"]


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Draw nothing: the weights are given."""


class _Conv2d(nn.Conv2d):
    def reset_parameters(self) -> None:
        """Draw nothing: the weights are given."""


def linear_layer(weight: Tensor) -> nn.Linear:
    """A linear layer with this weight [outputs, inputs] and a bias of zeros."""
    layer = _Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.zero_()
    return layer


def conv(weight: Tensor, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """A convolution with this weight [outputs, inputs, k, k], zeros around the image, its bias zeros.

    With `stride` 1 and odd k the output is as large as the input. A norm behind it makes a bias useless.
    """
    outputs, inputs, k, _ = weight.shape
    layer = _Conv2d(inputs, outputs, k, stride=stride, padding=k // 2, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def he(shape: tuple[int, ...], generator: torch.Generator, gain: float = math.sqrt(2)) -> Tensor:
    """Gaussian weights of standard deviation gain / sqrt(inputs); sqrt(2) keeps the scale through a ReLU."""
    inputs = math.prod(shape[1:])
    return torch.randn(shape, generator=generator) * (gain / math.sqrt(inputs))


def orthogonal(outputs: int, inputs: int, generator: torch.Generator) -> Tensor:
    """A random matrix [outputs, inputs] with orthonormal rows, or columns where there are more rows."""
    tall = torch.randn(max(outputs, inputs), min(outputs, inputs), generator=generator)
    q: Tensor
    q, r = torch.linalg.qr(tall)
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0)  # makes it uniform over all such matrices
    return q.T.contiguous() if outputs < inputs else q


@runtime_checkable
class Layered(Protocol):
    """A network that says itself what its layers are, first to last; modules of one entry belong together."""

    def layers(self) -> list[list[nn.Module]]:
        """The layers in order."""


def train_last(network: nn.Module, n: int) -> None:
    """Let the last `n` layers be trained and nothing else; 0: leave every parameter as it is.

    A layer is an entry of `network.layers()` where it has that, else a module that holds parameters itself.
    """
    if n == 0:
        return
    if isinstance(network, Layered):
        layers = network.layers()
    else:
        layers = [[part] for part in network.modules() if part._parameters]
    if not 0 < n <= len(layers):
        raise ConfigError(
            f"devices.last_layers must be from 0 (all) to the {len(layers)} layers of this network, got {n}; lower it."
        )
    network.requires_grad_(False)
    for parts in layers[-n:]:
        for part in parts:
            part.requires_grad_(True)
