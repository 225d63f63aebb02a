"""Device networks and their starts, the server's head, and losses per record.

A network is its module and one line of `MODELS`. The table imports nothing, so that a configuration is checked without
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dpzv.terms import StartName

if TYPE_CHECKING:
    import torch

__all__ = ["MODELS", "Model", "NetworkRequest", "first_start"]


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """What a network is made from.

    inputs: how many numbers (features, pixels, tokens) a record of its device has. embedding: how many numbers the
    network gives for a record. hidden: ``devices.hidden``. start: one of the model's starts. encoder: finds the folder
    of ``data.encoder``. generator: draws what is random at the start.
    """

    inputs: int
    embedding: int
    hidden: int
    start: StartName
    encoder: Callable[[], Path]
    generator: torch.Generator


@dataclass(frozen=True, slots=True)
class Model:
    """A kind of device network: its `maker`, a ``module:function`` of `dpzv.models`, and the `starts` it may have.

    The first of the starts is taken where none is named. `small` says that its operations are so short that several
    threads take longer for them than one.
    """

    maker: str
    starts: tuple[StartName, ...]
    small: bool = False

    def make(self, wanted: NetworkRequest) -> torch.nn.Module:
        """The network with the start that its maker gives it; starts from data or weights are put in afterwards."""
        module, _, function = self.maker.partition(":")
        made: torch.nn.Module = getattr(import_module(f"{__name__}.{module}"), function)(wanted)
        return made


LINEAR_STARTS = ("columns", "random", "weights", "pca", "dp-pca", "whiten", "dp-whiten")

MODELS = {
    "linear": Model("dense:make_linear", LINEAR_STARTS, small=True),
    "mlp": Model("dense:make_mlp", ("random", "weights"), small=True),
    "cnn": Model("gabor:make_strip", ("random", "weights", "gabor")),
    "cnn4": Model("gabor:make_patch", ("random", "weights", "gabor")),
    "resnet18": Model("resnet:make_resnet", ("random", "weights")),
    "bert": Model("text:make_text", ("random", "weights")),
}
"""The networks that ``devices.model`` may name."""


def first_start(models: str | tuple[str, ...]) -> StartName | tuple[StartName, ...]:
    """The start that a model has if none is named, or those of several; an unknown model is refused elsewhere."""
    starts = {name: model.starts[0] for name, model in MODELS.items()}
    if isinstance(models, str):
        return starts.get(models, "random")
    return tuple(starts.get(model, "random") for model in models)
