"""A public filter bank as the first layer: Gabor pairs with modulus and pooling (`devices.start = "gabor"`).

The filters come from a formula, so they cost no budget and depend on no record. They do not move; what is
trained is the linear map behind them, whose few parameters are all that a zeroth-order step has to explore.
Since the bank is fixed, a device may run it once over its records and train `linear` on the result.

Strips of digits (`devices.model = "cnn"`) have one bank of pairs. Patches of photographs (`devices.model = "cnn4"`)
have opponent colours (a 1x1 convolution), pairs of two sizes with modulus, and pooling into the four quarters of the
patch with a square root; the few constants of this bank were chosen once on CIFAR-10, which is public.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models import NetworkRequest
from dpzv.models.images import GREY, PatchCNN, StripCNN, geometry, pixels
from dpzv.models.layers import linear_layer, projection

__all__ = ["Energies", "GaborBank", "GaborCNN", "GaborPatchCNN", "PatchBank", "make_patch", "make_strip"]

STRIP_COLUMNS = 28  # the cnn's strips are rows of 28 pixels, as in mnist
ORIENTATIONS = 8
SIZE = 5  # pixels; a strip has few rows
WAVELENGTH = 4.0  # pixels; about twice the width of a pen stroke in a 28-pixel digit
SIGMA = 1.5  # pixels, of the Gaussian envelope
FAINT = 0.1  # added to a record's norm, so that nearly empty strips are not blown up to full size
GAIN = 2.0  # with it embeddings of strips with strokes have a deviation of about 1
# brightness, red against green, both against blue: orthonormal rows
OPPONENT = ((3**-0.5, 3**-0.5, 3**-0.5), (2**-0.5, -(2**-0.5), 0.0), (6**-0.5, 6**-0.5, -2 * 6**-0.5))
# mean and deviation of these three, measured once on CIFAR-10 (train and test) and rounded; a run measures nothing
MEANS, DEVIATIONS = (0.0, 0.0, 0.03), (0.35, 0.065, 0.1)


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


class GaborBank(nn.Module):
    """Strips [B, rows*columns] to [B, 9*bins]: per orientation the modulus of the pair, and the low pass, averaged
    over all rows and `columns / bins` columns; each record is scaled to nearly constant norm.

    It has no trainable parameters. `features` is 9*bins. `filters` [17, 1, 5, 5] are 8 even filters (without mean),
    their 8 odd partners, and one Gaussian low pass.
    """

    filters: Tensor

    def __init__(self, rows: int, columns: int, bins: int) -> None:
        super().__init__()
        if columns % bins:
            raise ConfigError(f"the gabor bank needs bins that divide {columns} columns, got {bins}; use {columns}.")
        self.rows, self.columns, self.bins = rows, columns, bins
        self.features = (ORIENTATIONS + 1) * bins
        pairs, envelope = gabor_pairs(ORIENTATIONS, SIZE, WAVELENGTH, SIGMA)
        filters = torch.cat([pairs, envelope[None]]).unsqueeze(1).float()
        self.register_buffer("filters", filters, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, 9*bins] of strips; an empty strip is zeros."""
        z = F.conv2d(pixels(x, 1, self.rows, self.columns), self.filters, padding=SIZE // 2)
        even, odd, low = torch.split(z, [ORIENTATIONS, ORIENTATIONS, 1], dim=1)
        h = torch.cat([torch.hypot(even, odd), low], dim=1)
        h = h.mean(2).view(len(h), self.features, -1).mean(2)
        norm: Tensor = torch.linalg.vector_norm(h, dim=1, keepdim=True)
        return h * (math.sqrt(self.features) / (norm + FAINT))


class Energies(nn.Module):
    """How strong each orientation is in each quarter of a plane: [B, 1, side, side] to [B, orientations, 2, 2].

    The modulus of Gabor pairs (lengths in pixels) is averaged, and its root standardised by `mean` and `deviation`,
    which were measured once on CIFAR-10 (train and test) and rounded. Wide filters give smooth planes, so they may skip
    pixels (`stride`).
    """

    filters: Tensor

    def __init__(
        self, orientations: int, size: int, wavelength: float, sigma: float, stride: int, mean: float, deviation: float
    ) -> None:
        super().__init__()
        self.orientations, self.size, self.stride = orientations, size, stride
        self.mean, self.deviation = mean, deviation
        pairs, _ = gabor_pairs(orientations, size, wavelength, sigma)
        self.register_buffer("filters", pairs.unsqueeze(1).float(), persistent=False)

    def forward(self, plane: Tensor) -> Tensor:
        """Standardised roots of the mean moduli."""
        around = [self.size // 2] * 4
        z = F.conv2d(F.pad(plane, around, mode="replicate"), self.filters, stride=self.stride)
        modulus = torch.hypot(z[:, : self.orientations], z[:, self.orientations :])
        return (_quarters(modulus).sqrt() - self.mean) / self.deviation


class PatchBank(nn.Module):
    """Patches [B, channels*side*side] to [B, features]: for each quarter the mean colour and the energies of
    8 orientations in two sizes of brightness, and of 4 orientations of the two colour differences.

    It has no trainable parameters. `features` is 108 for three channels and 68 for one.
    """

    opponent: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        if side < 8 or side % 4:
            raise ConfigError(
                f"the gabor bank needs patches of 8x8, 12x12, 16x16, ... pixels, got {side}x{side}; use start 'random'."
            )
        self.channels, self.side = channels, side
        self.features = 4 * (17 if channels == 1 else 27)
        self.fine = Energies(8, 5, 4.0, 1.5, 1, mean=0.18, deviation=0.07)
        self.coarse = Energies(8, 9, 8.0, 3.0, 2, mean=0.22, deviation=0.08)
        self.colour = Energies(4, 7, 6.0, 2.0, 2, mean=0.08, deviation=0.035)
        for name, values in (("opponent", OPPONENT), ("means", MEANS), ("deviations", DEVIATIONS)):
            self.register_buffer(name, torch.tensor(values).view(3, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, features] of patches."""
        x = pixels(x, self.channels, self.side, self.side) - GREY
        # a grey image has its value in all three colours
        planes = 3**0.5 * x if self.channels == 1 else F.conv2d(x, self.opponent)
        c = self.channels
        parts = [(_quarters(planes) - self.means[:c, 0]) / self.deviations[:c, 0]]
        parts += [size(planes[:, :1]) for size in (self.fine, self.coarse)]
        parts += [self.colour(planes[:, i : i + 1]) for i in range(1, c)]
        return torch.cat(parts, dim=1).flatten(1)


class _Banked(nn.Module):
    """A bank, then a trainable linear map to [B, embedding].

    The map starts as `gain` times a random projection, or the identity where the embedding is as wide as the bank's
    output.
    """

    def __init__(self, bank: GaborBank | PatchBank, embedding: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.bank = bank
        self.out = linear_layer(gain * projection(embedding, bank.features, generator))

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, embedding] of images."""
        embeddings: Tensor = self.out(self.bank(x))
        return embeddings


class GaborCNN(_Banked):
    """The network for strips; its bank gives 63 numbers for 28 columns, or 126 where the embedding is wider."""

    def __init__(self, rows: int, columns: int, embedding: int, generator: torch.Generator) -> None:
        narrow = (ORIENTATIONS + 1) * (columns // 4)
        bank = GaborBank(rows, columns, columns // 4 if embedding <= narrow else columns // 2)
        super().__init__(bank, embedding, GAIN, generator)


class GaborPatchCNN(_Banked):
    """The network for square patches."""

    def __init__(self, channels: int, side: int, embedding: int, generator: torch.Generator) -> None:
        super().__init__(PatchBank(channels, side), embedding, 1.0, generator)


def make_strip(wanted: NetworkRequest) -> GaborCNN | StripCNN:
    """The network for strips that the start asks for."""
    if wanted.inputs % STRIP_COLUMNS:
        raise ConfigError(
            f"the cnn takes strips of {STRIP_COLUMNS} columns, got {wanted.inputs} pixels; use 'cnn4' or 'mlp'."
        )
    kind = GaborCNN if wanted.start == "gabor" else StripCNN
    return kind(wanted.inputs // STRIP_COLUMNS, STRIP_COLUMNS, wanted.embedding, wanted.generator)


def make_patch(wanted: NetworkRequest) -> GaborPatchCNN | PatchCNN:
    """The network for square patches that the start asks for."""
    kind = GaborPatchCNN if wanted.start == "gabor" else PatchCNN
    return kind(*geometry(wanted.inputs), wanted.embedding, wanted.generator)


def _quarters(x: Tensor) -> Tensor:
    """The means of [B, c, n, n] over its four quarters: [B, c, 2, 2]."""
    return F.avg_pool2d(x, x.shape[-1] // 2)
