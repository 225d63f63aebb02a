"""Device networks: maps from a device's features [B, ...] to embeddings [B, k], each record by itself.

Starts are random from an explicit generator, and scaled by public constants so that embeddings have a standard
deviation of about 1 over records: a head learns poorly from embeddings that are ten times smaller, and
measuring the scale would look at the data.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models.initial import conv, he, linear_layer, orthogonal

__all__ = ["StripCNN", "linear", "mlp", "pixels"]


def linear(inputs: int, embedding: int, generator: torch.Generator) -> nn.Linear:
    """One linear map; its start keeps the size of a record, so inputs of deviation 1 stay there."""
    return linear_layer(he((embedding, inputs), generator, gain=1.0))


def mlp(inputs: int, hidden: int, embedding: int, generator: torch.Generator) -> nn.Sequential:
    """Linear, ReLU, linear: a tabular network."""
    return nn.Sequential(
        linear_layer(he((hidden, inputs), generator)),
        nn.ReLU(),
        linear_layer(he((embedding, hidden), generator, gain=1.0)),
    )


class StripCNN(nn.Module):
    """The two-layer CNN for a strip of an image: twice (3x3 convolution, 2x2 maximum, ReLU), then linear.

    Input: a strip of `rows` x `columns` pixels a record, [B, rows*columns] or [B, 1, rows, columns]; bytes are
    scaled to [0, 1], floats are taken to be there. Output: [B, embedding].
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

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, embedding] of strips."""
        h = pixels(x, self.rows, self.columns)
        h = _halved(self.conv1(h)).relu_()
        h = _halved(self.conv2(h)).relu_()
        embeddings: Tensor = self.out(h.flatten(1))
        return embeddings


def pixels(x: Tensor, rows: int, columns: int) -> Tensor:
    """Strips [B, rows*columns] or [B, 1, rows, columns], bytes or floats, as floats [B, 1, rows, columns]."""
    if x.shape[1:].numel() != rows * columns:
        raise ConfigError(
            f"the network expects strips of {rows}x{columns} pixels, got records of shape {tuple(x.shape[1:])}; "
            "check how the images are split."
        )
    x = x.view(-1, 1, rows, columns)
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _halved(x: Tensor) -> Tensor:
    """2x2 maximum pooling of [B, c, rows, columns]; a third of the time of torch's on a CPU."""
    rows, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = torch.maximum(x[:, :, 0:rows:2], x[:, :, 1:rows:2])
    return torch.maximum(x[..., 0:columns:2], x[..., 1:columns:2])
