"""A public filter bank as the first layer: Gabor pairs with modulus and pooling (`devices.start = "gabor"`).

The filters come from a formula, so they cost no budget and depend on no record. They do not move; what is
trained is the linear map behind them, whose few parameters are all that a zeroth-order step has to explore.
Since the bank is fixed, a device may run it once over its records and train `linear` on the result.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models.images import pixels
from dpzv.models.initial import linear_layer, orthogonal

__all__ = ["GaborBank", "GaborCNN", "gabor_filters", "gabor_pairs"]

ORIENTATIONS = 8
SIZE = 5  # pixels; a strip has few rows
WAVELENGTH = 4.0  # pixels; about twice the width of a pen stroke in a 28-pixel digit
SIGMA = 1.5  # pixels, of the Gaussian envelope
FAINT = 0.1  # added to a record's norm, so that nearly empty strips are not blown up to full size
GAIN = 2.0  # with it embeddings of strips with strokes have a deviation of about 1


def gabor_pairs(orientations: int, size: int, wavelength: float, sigma: float) -> tuple[Tensor, Tensor]:
    """`2*orientations` filters [.., size, size], even ones without mean, then their odd partners; and their envelope.

    Lengths are in pixels; the Gaussian envelope [size, size] of deviation `sigma` sums to 1. All in float64.
    """
    axis = torch.arange(size, dtype=torch.float64) - size // 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    envelope = torch.exp(-(x**2 + y**2) / (2 * sigma**2))
    envelope /= envelope.sum()
    angles = [math.pi * k / orientations for k in range(orientations)]
    phases = [2 * math.pi / wavelength * (x * math.cos(a) + y * math.sin(a)) for a in angles]
    even = [envelope * (phase.cos() - (envelope * phase.cos()).sum()) for phase in phases]
    odd = [envelope * phase.sin() for phase in phases]
    return torch.stack([*even, *odd]), envelope


def gabor_filters() -> Tensor:
    """[17, 1, 5, 5]: 8 even filters (without mean), their 8 odd partners, and one Gaussian low pass."""
    pairs, envelope = gabor_pairs(ORIENTATIONS, SIZE, WAVELENGTH, SIGMA)
    return torch.cat([pairs, envelope[None]]).unsqueeze(1).float()


class GaborBank(nn.Module):
    """Strips [B, rows*columns] to [B, 9*bins]: per orientation the modulus of the pair, and the low pass, averaged
    over all rows and `columns / bins` columns; each record is scaled to nearly constant norm.

    It has no trainable parameters. `features` is 9*bins.
    """

    filters: Tensor

    def __init__(self, rows: int, columns: int, bins: int) -> None:
        super().__init__()
        if columns % bins:
            raise ConfigError(f"the gabor bank needs bins that divide {columns} columns, got {bins}; use {columns}.")
        self.rows, self.columns, self.bins = rows, columns, bins
        self.features = (ORIENTATIONS + 1) * bins
        self.register_buffer("filters", gabor_filters(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, 9*bins] of strips; an empty strip is zeros."""
        z = F.conv2d(pixels(x, 1, self.rows, self.columns), self.filters, padding=SIZE // 2)
        even, odd, low = torch.split(z, [ORIENTATIONS, ORIENTATIONS, 1], dim=1)
        h = torch.cat([torch.hypot(even, odd), low], dim=1)
        h = h.mean(2).view(len(h), self.features, -1).mean(2)
        norm: Tensor = torch.linalg.vector_norm(h, dim=1, keepdim=True)
        return h * (math.sqrt(self.features) / (norm + FAINT))


class GaborCNN(nn.Module):
    """The bank, then a trainable linear map to [B, embedding].

    The bank gives 63 numbers for 28 columns (126 where the embedding is wider). The map starts as a random
    projection, or as the identity where the embedding is as wide as the bank's output.
    """

    def __init__(self, rows: int, columns: int, embedding: int, generator: torch.Generator) -> None:
        super().__init__()
        narrow = (ORIENTATIONS + 1) * (columns // 4)
        self.bank = GaborBank(rows, columns, columns // 4 if embedding <= narrow else columns // 2)
        same = embedding == self.bank.features
        start = torch.eye(embedding) if same else orthogonal(embedding, self.bank.features, generator)
        self.out = linear_layer(GAIN * start)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, embedding] of strips."""
        embeddings: Tensor = self.out(self.bank(x))
        return embeddings
