"""The server's model `w_0`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpzv.models.layers import he, linear_layer
from dpzv.rng import torch_generator

__all__ = ["Head", "seeded_head"]


class Head(nn.Module):
    """Two linear layers with ReLU: embeddings of all devices [B, k_1+...+k_M] to outputs [B, outputs].

    `outputs` is the number of classes, or 1 for a binary label or a number. For embeddings of deviation 1 the
    outputs of the random start have a deviation of about 1.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = linear_layer(he((hidden, inputs), generator))
        self.out = linear_layer(he((outputs, hidden), generator, gain=1.0))

    def forward(self, h: Tensor) -> Tensor:
        """Outputs [B, outputs]: logits, or a number."""
        output: Tensor = self.out(self.hidden(h).relu())
        return output


def seeded_head(inputs: int, hidden: int, outputs: int, seed: int, stream: str) -> Head:
    """A head with the random start that the run's `seed` and the stream's name give; the names are a format."""
    return Head(inputs, hidden, outputs, torch_generator(seed, "head", stream))
