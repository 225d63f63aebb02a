"""Losses per record against their formulas, and predictions."""

from __future__ import annotations

import math

import pytest
import torch

from dpzv.models.head import Head
from dpzv.models.losses import per_record_loss, predictions


def test_binary() -> None:
    z, y = torch.tensor([[0.0], [2.0], [-40.0]]), torch.tensor([0, 1, 1])
    expected = [math.log(2), math.log1p(math.exp(-2)), 40.0]
    assert per_record_loss("binary")(z, y).tolist() == pytest.approx(expected)
    assert predictions("binary", z).tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-2)), 0.0], abs=1e-6)


def test_classes() -> None:
    z, y = torch.tensor([[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]]), torch.tensor([0, 0])
    expected = [math.log(1 + math.e + math.e**2), math.log(1 + 2 * math.exp(-5))]
    assert per_record_loss("classes")(z, y).tolist() == pytest.approx(expected, rel=1e-5)
    assert predictions("classes", z).tolist() == [2, 0]


def test_regression_is_huber() -> None:
    z, y = torch.tensor([[0.5], [-3.0], [1.0]]), torch.tensor([0.0, 0.0, 1.0])
    assert per_record_loss("regression")(z, y).tolist() == pytest.approx([0.125, 2.5, 0.0])
    assert predictions("regression", z).tolist() == [0.5, -3.0, 1.0]


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("classes", 4), ("regression", 1)])
def test_a_record_has_its_own_loss(task: str, outputs: int) -> None:
    """Row rule through head and loss: a wild record leaves the other losses bit-equal."""
    generator = torch.Generator().manual_seed(0)
    head, loss = Head(6, 8, outputs, generator), per_record_loss(task)
    h, y = torch.randn(16, 6, generator=generator), torch.randint(2, (16,), generator=generator)
    wild, flipped = h.clone(), y.clone()
    wild[5], flipped[5] = float("inf"), 1 - y[5]
    before, after = loss(head(h), y), loss(head(wild), flipped)
    others = torch.arange(16) != 5
    assert before.shape == (16,)
    assert torch.equal(before[others], after[others])
