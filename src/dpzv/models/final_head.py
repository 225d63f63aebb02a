"""The head that is fitted last and stays at the server: standardised columns, some linear layers, the label's scale."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import safetensors.torch
import torch
from torch import Tensor, nn

from dpzv.models.head import head_of
from dpzv.models.layers import he, linear_layer

__all__ = ["FinalHead", "load_head"]


class FinalHead(nn.Module):
    """Embeddings of all devices [B, k_1+...+k_M] to outputs [B, outputs].

    Each column of the embeddings first becomes ``(h - mean) * scale``, then come linear layers with ReLU between them,
    then ``output * out_scale + out_mean``. All of it is in the state, so that a stored head needs nothing else. The
    names in the state are the format of ``final.safetensors``.
    """

    mean: Tensor
    scale: Tensor
    out_mean: Tensor
    out_scale: Tensor

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        inputs = layers[0].in_features
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        self.register_buffer("out_mean", torch.zeros(1))
        self.register_buffer("out_scale", torch.ones(1))

    @classmethod
    def seeded(cls, widths: Sequence[int], generator: torch.Generator) -> Self:
        """A random start; `widths` are the inputs, the hidden layers and the outputs."""
        last = len(widths) - 2
        pairs = enumerate(itertools.pairwise(widths))
        return cls([linear_layer(he((b, a), generator, 1.0 if i == last else 2**0.5)) for i, (a, b) in pairs])

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The head whose `state_dict` was stored."""
        count = sum(name.startswith("layers.") and name.endswith(".weight") for name in state)
        head = cls([linear_layer(state[f"layers.{i}.weight"]) for i in range(count)])
        head.load_state_dict(dict(state))
        return head

    def forward(self, h: Tensor) -> Tensor:
        """Outputs [B, outputs]: logits, or a number."""
        h = (h - self.mean) * self.scale
        for layer in self.layers[:-1]:
            h = layer(h).relu()
        output: Tensor = self.layers[-1](h) * self.out_scale + self.out_mean
        return output


def load_head(weights: Path) -> torch.nn.Module:
    """The head in a finished run's ``weights/``: the refitted one if there is one, else w_0."""
    final = weights / "final.safetensors"
    if final.exists():
        return FinalHead.of_state(safetensors.torch.load_file(final))
    return head_of(safetensors.torch.load_file(weights / "server.safetensors"))
