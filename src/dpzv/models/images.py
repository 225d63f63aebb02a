"""Device networks for parts of images: a strip of a digit, a patch of a photograph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpzv.errors import ConfigError
from dpzv.models.layers import MappedFeatures, conv, he, linear_layer, orthogonal

__all__ = ["GREY", "PatchCNN", "StripCNN", "geometry", "pixels"]

GREY = 0.47  # about the mean of photographs' pixels, in [0, 1]


class StripCNN(MappedFeatures):
    """The two-layer CNN for a strip of an image: twice (3x3 convolution, 2x2 maximum, ReLU), then linear.

    Input: a strip of `rows` x `columns` pixels a record, [B, rows*columns] or [B, 1, rows, columns]; bytes are
    scaled to [0, 1], floats must be in that range already. Output: [B, embedding].
    """

    CHANNELS = (8, 16)
    GAIN = 4.0  # with it embeddings of strips with strokes (bright on black) have a deviation of about 1

    def __init__(self, rows: int, columns: int, embedding: int, generator: torch.Generator) -> None:
        super().__init__()
        if rows < 4 or columns < 4:
            raise ConfigError(f"the cnn needs strips of at least 4x4 pixels, got {rows}x{columns}; use an mlp.")
        first, second = self.CHANNELS
        features = second * (rows // 4) * (columns // 4)
        self.rows, self.columns = rows, columns
        self.conv1 = conv(he((first, 1, 3, 3), generator))
        self.conv2 = conv(he((second, first, 3, 3), generator))
        self.out = linear_layer(self.GAIN * orthogonal(embedding, features, generator))

    def features(self, x: Tensor) -> Tensor:
        """The input [B, n] of the map, for strips."""
        h = pixels(x, 1, self.rows, self.columns)
        h = _halved(self.conv1(h)).relu_()
        return _halved(self.conv2(h)).relu_().flatten(1)


class PatchCNN(MappedFeatures):
    """The four-layer CNN for a square patch: four 3x3 convolutions with ReLU, then linear.

    A 2x2 maximum follows the first, second and fourth of them. Input: [B, channels*side*side] in channel-row-column
    order, bytes or floats in [0, 1]. Output: [B, embedding].
    """

    CHANNELS = (16, 32, 32, 64)
    GAIN = 1.5  # with it embeddings of photographs have a deviation of about 1
    CONTRAST = 4.0  # 1 over the standard deviation of photographs' pixels, which is about 1/4

    def __init__(self, channels: int, side: int, embedding: int, generator: torch.Generator) -> None:
        super().__init__()
        if side < 8:
            raise ConfigError(f"the cnn4 needs patches of at least 8x8 pixels, got {side}x{side}; use an mlp.")
        a, b, c, d = self.CHANNELS
        self.channels, self.side = channels, side
        self.conv1 = conv(he((a, channels, 3, 3), generator))
        self.conv2 = conv(he((b, a, 3, 3), generator))
        self.conv3 = conv(he((c, b, 3, 3), generator))
        self.conv4 = conv(he((d, c, 3, 3), generator))
        self.out = linear_layer(self.GAIN * orthogonal(embedding, d * (side // 8) ** 2, generator))

    def features(self, x: Tensor) -> Tensor:
        """The input [B, n] of the map, for patches."""
        h = (pixels(x, self.channels, self.side, self.side) - GREY) * self.CONTRAST
        h = h.contiguous(memory_format=torch.channels_last)  # a CPU needs half as long for it
        h = _halved(self.conv1(h)).relu_()
        h = _halved(self.conv2(h)).relu_()
        h = self.conv3(h).relu_()
        return _halved(self.conv4(h)).relu_().flatten(1)


def geometry(inputs: int) -> tuple[int, int]:
    """(channels, side) of a square image of `inputs` numbers: one channel, or three (red, green, blue)."""
    for channels in (1, 3):
        side = math.isqrt(inputs // channels)
        if channels * side * side == inputs:
            return channels, side
    raise ConfigError(
        f"an image network needs square images of 1 or 3 channels, got {inputs} numbers a record; "
        "check how the images are split, or use an mlp."
    )


def pixels(x: Tensor, channels: int, rows: int, columns: int) -> Tensor:
    """Images, flat in channel-row-column order or not, bytes or floats, as floats [B, channels, rows, columns]."""
    if x.shape[1:].numel() != channels * rows * columns:
        raise ConfigError(
            f"the network expects images of {channels}x{rows}x{columns} pixels, got records of shape "
            f"{tuple(x.shape[1:])}; check how the images are split."
        )
    x = x.view(-1, channels, rows, columns)
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _halved(x: Tensor) -> Tensor:
    """2x2 maximum pooling of [B, c, rows, columns]; it takes a third of the time of torch's own on a CPU."""
    rows, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = torch.maximum(x[:, :, 0:rows:2], x[:, :, 1:rows:2])
    return torch.maximum(x[..., 0:columns:2], x[..., 1:columns:2])
