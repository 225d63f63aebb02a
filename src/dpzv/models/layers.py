"""Which parameters of a device are trained (`devices.last_layers`)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import nn

from dpzv.errors import ConfigError

__all__ = ["Layered", "train_last"]


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
