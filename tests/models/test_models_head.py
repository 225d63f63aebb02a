"""The head that only adds, and where outputs start: oracles in plain numpy, and sentences for what does not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpzv.errors import ConfigError
from dpzv.models.head import Head, Offset, SumHead, base_offset, head_of


def test_a_sum_adds_the_devices_and_has_nothing_to_train() -> None:
    h = torch.randn(5, 4 * 3, generator=torch.Generator().manual_seed(0))
    head = SumHead(3, Offset((0.5, -1.0, 2.0), 10.0))
    by_device = h.numpy().reshape(5, 4, 3)
    np.testing.assert_allclose(head(h).numpy(), [0.5, -1.0, 2.0] + 10 * by_device.sum(axis=1), rtol=1e-5)
    assert list(head.parameters()) == []
    assert head(h[:0]).shape == (0, 3)
    np.testing.assert_allclose(SumHead(1)(h).numpy()[:, 0], h.numpy().sum(axis=1), rtol=1e-5)


def test_a_network_starts_at_its_offset() -> None:
    made = [Head(6, 8, 3, torch.Generator().manual_seed(1)) for _ in range(2)]
    made[1].shift(Offset((1.0, 2.0, 3.0), 5.0))
    h = torch.randn(7, 6)
    np.testing.assert_allclose(made[1](h).detach(), 5 * made[0](h).detach() + torch.tensor([1.0, 2.0, 3.0]), rtol=1e-5)


@pytest.mark.parametrize("head", [Head(6, 8, 2, torch.Generator().manual_seed(2)), SumHead(2, Offset((3.0,), 4.0))])
def test_a_stored_head_comes_back(head: Head | SumHead) -> None:
    h, back = torch.randn(3, 6), head_of(head.state_dict())
    assert type(back) is type(head)
    assert torch.equal(back(h), head(h))


def test_base_rates_become_outputs_with_those_rates() -> None:
    (logit,) = base_offset(0.24, "binary", 1).base
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(0.24)
    logits = np.array(base_offset((0.2, 0.3, 0.5), "classes", 3).base)
    np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(), [0.2, 0.3, 0.5])
    assert base_offset(7.0, "regression", 1) == Offset((7.0,), 1.0)
    assert base_offset((7.0, 2.0), "regression", 1) == Offset((7.0,), 2.0)


@pytest.mark.parametrize(
    ("base", "task", "outputs", "words"),
    [
        (0.0, "binary", 1, "strictly between 0 and 1"),
        ((0.2, 0.8), "binary", 1, "probability of label 1, got 2 values"),
        ((0.2, 0.8), "classes", 3, "frequencies of all 3 classes, got 2"),
        ((0.2, 0.2, 0.2), "classes", 3, "add up to 1, got 0.6"),
        ((1.0, 0.0), "regression", 1, "scale in head.base must be above 0"),
        ((1.0, 1.0, 1.0), "regression", 1, "mean and scale, got 3"),
        ((50.0, 30.0), "regression", 1, "range is -1 to 1 .* got a mean of 50"),
    ],
)
def test_a_base_that_does_not_fit_the_labels_is_refused(base, task, outputs, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=words):
        base_offset(base, task, outputs)
