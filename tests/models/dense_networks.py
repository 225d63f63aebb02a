"""Networks for tables, made as a configuration makes them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dpzv.models import NetworkRequest
from dpzv.models.dense import make_linear, make_mlp


def request(inputs: int, hidden: int, embedding: int, generator: torch.Generator) -> NetworkRequest:
    return NetworkRequest(inputs, embedding, hidden, "random", Path, generator)


def linear(inputs: int, embedding: int, generator: torch.Generator, start: str = "random") -> nn.Linear:
    return make_linear(NetworkRequest(inputs, embedding, 1, start, Path, generator))


def mlp(inputs: int, hidden: int, embedding: int, generator: torch.Generator) -> nn.Sequential:
    return make_mlp(request(inputs, hidden, embedding, generator))
