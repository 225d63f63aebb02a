"""A public filter bank for patches of photographs (`devices.model = "cnn4"`, `devices.start = "gabor"`).

Four layers: opponent colours (a 1x1 convolution), Gabor pairs of two sizes with modulus, pooling into the four
quarters of the patch with a square root, and a linear map. All but the map come from formulas and do not move:
they cost no budget, and no run looks at a record for them. Their few constants were chosen once on CIFAR-10, which
is public. What is trained is the map.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models.gabor import gabor_pairs
from dpzv.models.images import GREY, pixels
from dpzv.models.initial import linear_layer, orthogonal

__all__ = ["Energies", "GaborPatchCNN", "PatchBank"]

# brightness, red against green, both against blue: orthonormal rows
OPPONENT = ((3**-0.5, 3**-0.5, 3**-0.5), (2**-0.5, -(2**-0.5), 0.0), (6**-0.5, 6**-0.5, -2 * 6**-0.5))
# mean and deviation of these three, measured once on CIFAR-10 (train and test) and rounded; a run measures nothing
MEANS, DEVIATIONS = (0.0, 0.0, 0.03), (0.35, 0.065, 0.1)


class Energies(nn.Module):
    """How strong each orientation is in each quarter of a plane: [B, 1, side, side] to [B, orientations, 2, 2].

    The modulus of Gabor pairs (lengths in pixels), averaged, its root standardised by `mean` and `deviation`:
    measured once on CIFAR-10 (train and test) and rounded. Wide filters give smooth maps, so they may skip
    pixels (`stride`).
    """

    filters: Tensor

    def __init__(
        self, orientations: int, size: int, wavelength: float, sigma: float, stride: int, mean: float, deviation: float
    ) -> None:
        super().__init__()
        self.orientations, self.size, self.stride, self.mean, self.deviation = (
            orientations,
            size,
            stride,
            mean,
            deviation,
        )
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
        self.register_buffer("opponent", torch.tensor(OPPONENT), persistent=False)
        self.register_buffer("means", torch.tensor(MEANS).view(3, 1, 1), persistent=False)
        self.register_buffer("deviations", torch.tensor(DEVIATIONS).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, features] of patches."""
        x = pixels(x, self.channels, self.side, self.side) - GREY
        # a grey image has its value in all three colours
        planes = 3**0.5 * x if self.channels == 1 else F.conv2d(x, self.opponent[:, :, None, None])
        c = self.channels
        parts = [(_quarters(planes) - self.means[:c]) / self.deviations[:c]]
        parts += [size(planes[:, :1]) for size in (self.fine, self.coarse)]
        parts += [self.colour(planes[:, i : i + 1]) for i in range(1, c)]
        return torch.cat(parts, dim=1).flatten(1)


class GaborPatchCNN(nn.Module):
    """The bank, then a trainable linear map to [B, embedding].

    The map starts as a random projection, or as the identity where the embedding is as wide as the bank's output.
    """

    def __init__(self, channels: int, side: int, embedding: int, generator: torch.Generator) -> None:
        super().__init__()
        self.bank = PatchBank(channels, side)
        same = embedding == self.bank.features
        self.out = linear_layer(torch.eye(embedding) if same else orthogonal(embedding, self.bank.features, generator))

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, embedding] of patches."""
        embeddings: Tensor = self.out(self.bank(x))
        return embeddings


def _quarters(x: Tensor) -> Tensor:
    """The means of [B, c, n, n] over its four quarters: [B, c, 2, 2]."""
    return F.avg_pool2d(x, x.shape[-1] // 2)
