"""A linear device along K directions at once, against the evaluation one after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpzv.methods import dpzv
from dpzv.methods.linear_device import is_linear
from dpzv.methods.rules import Uplink, make_device_rule
from dpzv.methods.steps import KEPT, Steps
from dpzv.models.dense import PaddedLinear, WhitenedLinear
from dpzv.zo.directions import layout

OPEN = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))
B, K, COLUMNS, LAM = 50, 6, 7, 1e-3


class Bent(nn.Linear):
    """A subclass that is no linear map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).tanh()


def whitened(k: int) -> WhitenedLinear:
    network = WhitenedLinear(nn.Linear(COLUMNS, k))
    network.mean.copy_(torch.randn(COLUMNS))
    network.matrix.copy_(torch.randn(COLUMNS, COLUMNS))
    return network


def sent(network: nn.Module, x: torch.Tensor, directions: int = K) -> tuple[torch.Tensor, ...]:
    steps = Steps(0.1, 0.0, "constant", 1, directions)
    device = make_device_rule("dpzv", network, m=1, seed=3, lam=LAM, steps=steps, uplink=OPEN)
    return device.embeddings(x, 2)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("kind", ["linear", "whitened"])
def test_at_once_is_one_after_the_other(kind: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 to its last digits, so the slopes, which are divided by lam, agree as well."""
    torch.manual_seed(k)
    network = (nn.Linear(COLUMNS, k) if kind == "linear" else whitened(k)).double()
    x = torch.randn(B, COLUMNS, dtype=torch.float64)
    assert is_linear(network, layout(network))
    found = sent(network, x)
    monkeypatch.setattr(dpzv, "is_linear", lambda *_: False)
    expected = sent(network, x)
    assert len(found) == len(expected) == K + 1
    for one, other in zip(found, expected, strict=True):
        assert one.shape == (B, k)
        assert one.dtype == torch.float64
        # a direction has float32 numbers, and `w + lam*u` is made from `lam*u` rounded to them
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * LAM * float(x.abs().max()) * COLUMNS)
    assert all(not torch.equal(one, found[0]) for one in found[1:])


def test_a_record_depends_on_itself_alone() -> None:
    torch.manual_seed(0)
    network, x = whitened(3), torch.randn(B, COLUMNS)
    before = torch.stack(sent(network, x))
    x[17] = math.inf
    after = torch.stack(sent(network, x))
    others = torch.arange(B) != 17
    assert torch.equal(before[:, others], after[:, others])
    assert not after[:, 17].isfinite().any()


def test_only_plain_linear_maps_are_taken_at_once() -> None:
    def linear(network: Any) -> bool:
        return is_linear(network, layout(network))

    assert linear(nn.Linear(COLUMNS, 2))
    assert not linear(nn.Linear(COLUMNS, 2, bias=False))
    assert not linear(Bent(COLUMNS, 2))
    assert not linear(PaddedLinear(torch.ones(2, COLUMNS), 3))
    assert not linear(nn.Sequential(nn.Linear(COLUMNS, 2)))
    assert not linear(nn.Linear(COLUMNS, 70_000 // COLUMNS))  # a matrix with blocks of its own
    hooked = nn.Linear(COLUMNS, 2)
    hooked.register_forward_hook(lambda module, given, output: output.tanh())
    assert not linear(hooked)
    halved = nn.Linear(COLUMNS, 2)
    halved.bias.requires_grad_(False)
    assert not linear(halved)


def test_directions_that_are_not_kept_are_evaluated_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that K of them never need more memory than one."""
    monkeypatch.setattr(dpzv, "along", lambda *_: pytest.fail("all directions were made at once"))
    many = KEPT // (COLUMNS + 1) // 60 + 1
    assert len(sent(nn.Linear(COLUMNS, 60), torch.randn(2, COLUMNS), many)) == many + 1
