"""The head that is fitted last and stays at the server: a network or boosted trees over the devices' embeddings."""

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

__all__ = ["AT_ONCE", "FinalHead", "TreeHead", "load_head"]

AT_ONCE = 1024
"""Records that trees look at together; each takes a place in every tree."""


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

    def put_units(self, mean: Tensor, scale: Tensor) -> None:
        """Let the outputs be in the label's own units: ``output * scale + mean``."""
        self.out_mean, self.out_scale = mean, scale


class TreeHead(nn.Module):
    """Boosted trees: embeddings [B, inputs] to outputs [B, outputs], a base plus the values of the leaves reached.

    All trees have `nodes` places, the first of which is the root. A record goes to ``left`` where its column ``column``
    is at most ``threshold``, else to ``right``; a leaf leads to itself, and ``depth`` steps lead every record to one.
    ``output`` says which output a tree adds to. Columns are compared in double precision, since a threshold may lie
    between two neighbouring numbers. The names and types in the state are the format of ``final.safetensors``.
    """

    column: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    output: Tensor
    base: Tensor
    depth: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        """`column`, `threshold`, `left`, `right`, `value` are [trees, nodes], `output` is [trees], `base` [outputs]."""
        super().__init__()
        for name in ("column", "threshold", "left", "right", "value", "output", "base", "depth"):
            self.register_buffer(name, state[name])

    def first(self, trees: int) -> TreeHead:
        """The head of the first trees only."""
        whole = self.state_dict()
        return TreeHead({name: part if name in ("base", "depth") else part[:trees] for name, part in whole.items()})

    def put_units(self, mean: Tensor, scale: Tensor) -> None:
        """Let the outputs be in the label's own units: ``output * scale + mean``."""
        self.base, self.value = self.base * scale + mean, self.value * scale

    def forward(self, h: Tensor) -> Tensor:
        """Outputs [B, outputs]: logits, or a number."""
        starts = range(0, max(1, len(h)), AT_ONCE)
        return torch.cat([self._outputs(h[start : start + AT_ONCE]) for start in starts])

    def _outputs(self, h: Tensor) -> Tensor:
        """Every record walks down all trees at once; a walk that has reached its leaf takes no part in further steps.

        A place is a number within the tables of all trees, one after the other.
        """
        (B, inputs), (trees, nodes) = h.shape, self.column.shape
        numbers, roots = h.double().flatten(), torch.arange(trees, device=h.device) * nodes
        columns, thresholds = self.column.flatten(), self.threshold.flatten()
        below = (torch.stack([self.left, self.right], dim=2) + roots[:, None, None]).flatten()
        leaf = self.left.flatten() == torch.arange(nodes, device=h.device).repeat(trees)
        at = roots.repeat(B)
        ends, walks = at.clone(), torch.arange(B * trees, device=h.device)
        for _ in range(int(self.depth)):
            record = walks.div(trees, rounding_mode="floor")
            right = numbers.take(record.mul_(inputs).add_(columns.take(at))) > thresholds.take(at)
            at = below.take(at.mul_(2).add_(right))
            ends[walks] = at
            going = leaf.take(at).logical_not_().nonzero().squeeze(1)
            walks, at = walks.take(going), at.take(going)
        found = self.base.expand(B, -1).clone()
        return found.index_add_(1, self.output, self.value.take(ends).view(B, trees)).float()


def load_head(weights: Path) -> torch.nn.Module:
    """The head in a finished run's ``weights/``: the final one if there is one, else w_0."""
    final = weights / "final.safetensors"
    if final.exists():
        state = safetensors.torch.load_file(final)
        return TreeHead(state) if "threshold" in state else FinalHead.of_state(state)
    return head_of(safetensors.torch.load_file(weights / "server.safetensors"))
