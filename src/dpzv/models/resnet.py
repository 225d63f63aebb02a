"""ResNet-18 for small square images, with GroupNorm: BatchNorm would mix the records of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models import NetworkRequest
from dpzv.models.images import geometry, pixels
from dpzv.models.layers import MappedFeatures, conv, he, linear_layer, orthogonal

__all__ = ["BasicBlock", "ResNet18", "make_resnet", "shapes"]

WIDTHS = (64, 128, 256, 512)
GROUPS = 32
BRANCH = 0.2  # start of the last norm in a block's branch, chosen among 0, 0.2 and 1 on ModelNet10's views


class BasicBlock(nn.Module):
    """[B, inputs, n, n] to [B, outputs, n/stride, n/stride]: two 3x3 convolutions with norms beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1 = conv(he((outputs, inputs, 3, 3), generator), stride=stride, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, outputs)
        self.conv2 = conv(he((outputs, outputs, 3, 3), generator), bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, outputs)
        nn.init.constant_(self.norm2.weight, BRANCH)
        self.shortcut = nn.Sequential()  # the identity
        if inputs != outputs or stride != 1:
            across = conv(he((outputs, inputs, 1, 1), generator), stride=stride, bias=False)
            self.shortcut = nn.Sequential(across, nn.GroupNorm(GROUPS, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of branch plus shortcut."""
        h: Tensor = self.norm1(self.conv1(x)).relu_()
        h = self.norm2(self.conv2(h))
        h += self.shortcut(x)
        return h.relu_()


class ResNet18(MappedFeatures):
    """Stem, four stages of two blocks, average pooling, linear map to [B, embedding].

    The stem is a 3x3 convolution of stride 2: between that for large photographs (7x7, then pooling: stride 4)
    and that for 32x32 objects (stride 1), at a quarter of the latter's cost. Input: [B, channels*side*side] in
    channel-row-column order, bytes or floats in [0, 1]. The map's bias starts such that generated pictures have
    embeddings of mean zero: averages of ReLUs are far from zero, and no record may be looked at.
    """

    GAIN = 7.5  # with it embeddings of ModelNet10's depth views (where it was measured) have a deviation of about 1
    MEAN, DEVIATION = 0.2, 0.3  # of those views' pixels in [0, 1], measured once and rounded

    def __init__(self, channels: int, side: int, embedding: int, generator: torch.Generator) -> None:
        super().__init__()
        if side < 16:
            raise ConfigError(f"the resnet18 needs images of at least 16x16 pixels, got {side}x{side}; use a cnn4.")
        self.channels, self.side = channels, side
        self.stem = nn.Sequential(
            conv(he((WIDTHS[0], channels, 3, 3), generator), stride=2, bias=False), nn.GroupNorm(GROUPS, WIDTHS[0])
        )
        self.layer1 = _stage(WIDTHS[0], WIDTHS[0], 1, generator)
        self.layer2 = _stage(WIDTHS[0], WIDTHS[1], 2, generator)
        self.layer3 = _stage(WIDTHS[1], WIDTHS[2], 2, generator)
        self.layer4 = _stage(WIDTHS[2], WIDTHS[3], 2, generator)
        self.out = linear_layer(self.GAIN * orthogonal(embedding, WIDTHS[3], generator))
        with torch.no_grad():
            self.out.bias.sub_(self(shapes(32, channels, side, generator)).mean(0))

    def features(self, x: Tensor) -> Tensor:
        """The input [B, 512] of the map, for images."""
        h = (pixels(x, self.channels, self.side, self.side) - self.MEAN) / self.DEVIATION
        h = self.stem(h).relu_()
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        means: Tensor = h.mean((2, 3))
        return means

    def layers(self) -> list[list[nn.Module]]:
        """Stem, four stages, map."""
        return [[self.stem], [self.layer1], [self.layer2], [self.layer3], [self.layer4], [self.out]]


def make_resnet(wanted: NetworkRequest) -> ResNet18:
    """`ResNet18` for the square images asked for."""
    return ResNet18(*geometry(wanted.inputs), wanted.embedding, wanted.generator)


def shapes(n: int, channels: int, side: int, generator: torch.Generator) -> Tensor:
    """Pictures [n, channels*side*side] in [0, 1] of smooth random shapes on black: public, made from no record."""
    z = torch.randn(n, channels, side, side, generator=generator)
    reach = side // 8
    for _ in range(3):
        z = F.avg_pool2d(F.pad(z, [reach] * 4, mode="reflect"), 2 * reach + 1, stride=1)
    z = z / z.std((2, 3), keepdim=True)
    return (z - 0.5).clamp(0, 1).flatten(1)


def _stage(inputs: int, outputs: int, stride: int, generator: torch.Generator) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride, generator), BasicBlock(outputs, outputs, 1, generator))
