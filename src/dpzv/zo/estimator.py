"""How fast each record's loss grows along `u`: the two-point estimator of eq. (zero), and one-sided differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv.errors import ConfigError

__all__ = ["delta_zo", "one_sided"]


def delta_zo(f_plus: Tensor, f_minus: Tensor, lam: float) -> NDArray[np.float64]:
    """`(f_plus - f_minus) / (2*lam)` for each record: losses [B] in, float64 [B] out.

    The losses keep the precision they were computed in; from the subtraction on everything is float64, so the
    only error that matters is the losses' own rounding, about 1e-7 of a loss divided by `2*lam`.
    `E[delta_zo * u]` is the gradient up to O(lam^2).
    """
    if not lam > 0:
        raise ConfigError(f"lam must be above 0, got {lam}; set lam to a positive number.")
    with np.errstate(invalid="ignore"):  # the difference of two infinities is no number
        terms: NDArray[np.float64] = np.subtract(f_plus.numpy(force=True), f_minus.numpy(force=True), dtype=np.float64)
    terms /= 2 * lam
    return terms


def one_sided(moved: Sequence[Tensor], f: Tensor, lam: float) -> NDArray[np.float64]:
    """`(f_j - f) / lam` for each record and each of the K losses `moved`: losses [B] in, float64 [B, K] out.

    K directions take K + 1 evaluations, where two points a direction would take 2K. `E[difference * u]` is the gradient
    up to O(lam). In memory the differences of one direction are neighbours, so that clipping is several times as fast.
    """
    return delta_zo(torch.stack(tuple(moved)), f, lam / 2).T
