"""A zeroth-order round needs hardly more memory than inference (with more models: `make bench`)."""

from __future__ import annotations

import pytest
import torch
from benchmarks.zo_memory import BAR, extra_bytes
from tests.oracles import direction
from torch import nn

from dpzv.zo.directions import BLOCK
from dpzv.zo.perturb import two_point
from dpzv.zo.standin import Perturbed

MODEL = 48 * (1024 * 1024 + 1024) * 4  # bytes of weights


def test_peak_memory_of_a_round_against_inference() -> None:
    inference = extra_bytes("stack", "inference")
    assert MODEL <= inference <= 1.05 * MODEL  # the measure sees the model and little else
    assert extra_bytes("stack", "round") <= BAR * inference


def test_large_matrices_are_never_made_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear and Embedding layers read them a few rows at a time; one matrix may be most of a model."""
    width = 64
    network = nn.Sequential(nn.Embedding(2 * BLOCK // width, width), nn.Linear(width, 2 * BLOCK // width))
    made: list[str] = []
    names, whole = [name for name, _ in network.named_parameters()], Perturbed.whole
    monkeypatch.setattr(Perturbed, "whole", lambda self, i: (made.append(names[i]), whole(self, i))[1])
    two_point(network, torch.tensor([0, 5]), direction(network, 1), 1e-2)
    assert set(made) == {"1.bias"}
