"""Only the last layers are trained: exactly their parameters are in the layout, move, and nothing else does."""

from __future__ import annotations

import pytest
import torch
from dense_networks import linear, mlp
from tests.oracles import direction
from torch import nn

from dpzv.errors import ConfigError
from dpzv.models.images import PatchCNN
from dpzv.models.layers import train_last
from dpzv.models.resnet import ResNet18
from dpzv.zo.directions import layout
from dpzv.zo.perturb import step, two_point


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_last_n_leaf_layers() -> None:
    expected = ["out", "conv4", "conv3", "conv2", "conv1"]
    for n in range(1, 6):
        network = PatchCNN(3, 16, 8, generator(0))
        train_last(network, n)
        assert {name.split(".")[0] for name in layout(network).names} == set(expected[:n])
    network = PatchCNN(3, 16, 8, generator(0))
    train_last(network, 0)
    assert len(layout(network).names) == 10
    tabular = mlp(4, 5, 3, generator(0))
    train_last(tabular, 1)
    assert layout(tabular).names == ["2.weight", "2.bias"]


def test_the_last_n_parts_of_a_resnet() -> None:
    network = ResNet18(1, 16, 8, generator(0))
    expected = ["out", "layer4", "layer3", "layer2", "layer1", "stem"]
    for n in (6, 3, 2, 1):
        network.requires_grad_(True)
        train_last(network, n)
        assert {name.split(".")[0] for name in layout(network).names} == set(expected[:n])
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    x = torch.rand(2, 256, generator=generator(1))
    h_plus, h_minus = two_point(network, x, direction(network, 3), 1e-3)
    assert not torch.equal(h_plus, h_minus)
    step(direction(network, 3), 1e-2)
    moved = {name for name, weight in network.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {"out.weight", "out.bias"}


def test_more_layers_than_there_are() -> None:
    with pytest.raises(ConfigError, match=r"from 0 .all. to the 1 layers of this network, got 2"):
        train_last(linear(4, 3, generator(0)), 2)
    with pytest.raises(ConfigError, match="got -1"):
        train_last(nn.Linear(4, 3), -1)
