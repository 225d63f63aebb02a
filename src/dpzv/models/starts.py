"""Starts of a linear device network from its own features: principal components or whitening, plain or private.

Both see the features only through one matrix: the sum over records of the outer product of the row with
itself, each row clipped to norm `R` and extended by a public constant `c`. Mean, scales and directions all
follow from it. `pca_start` and `whiten_start` use it as it is, which costs no budget only if labels alone are
protected; `dp_pca_start` and `dp_whiten_start` add Gaussian noise to it first, once, drawn by the device itself and
kept secret. Both private starts cost the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from dpzv.errors import ConfigError
from dpzv.models.dense import WhitenedLinear
from dpzv.sensitivity import MIRRORED, MOST_SUMMED, SUM_CHUNK
from dpzv.validate import positive

__all__ = [
    "MatrixNoise",
    "dp_pca_start",
    "dp_whiten_start",
    "moment_norm",
    "pca_start",
    "second_moment",
    "set_linear",
    "set_whitening",
    "whiten_start",
]

Matrix = NDArray[np.float64]
RIDGE = 1.0
"""What whitening adds to every variance, in units of the mean variance, so that columns that hardly vary do not become
large. It is a public constant."""

MOST_COLUMNS = 1 << 14
"""The most columns of a private start: rounding its matrix to the grid moves it by a share of 2.4e-7 of one row's part.
"""


@dataclass(frozen=True, slots=True)
class LinearStart:
    """The map `x -> weight @ x + bias`: weight [k, d], bias [k], float64."""

    weight: Matrix
    bias: Matrix


@dataclass(frozen=True, slots=True)
class Whitening:
    """The map `x -> (x - mean) @ matrix` to columns of about equal deviation without correlation.

    mean [d], matrix [d, d], float64; the matrix is symmetric.
    """

    mean: Matrix
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class MatrixNoise:
    """Noise for a symmetric matrix: its standard deviation on the diagonal, its grid (0: none), and who draws it.

    ``draw(scales, grid)`` gives independent Gaussian noise with these standard deviations, secret or seeded, as
    integers of the grid if there is one.
    """

    scale: float
    grid: float
    draw: Callable[[Matrix, float], Matrix | NDArray[np.int64]]

    def largest(self, d: int, n: int) -> float:
        """About the largest eigenvalue that the noise has in the covariance of n records of d features."""
        return 2 * self.scale / MIRRORED * math.sqrt(d) / n


def moment_norm(R: float, c: float) -> float:
    """The largest Frobenius norm of what one record adds to the second-moment matrix: `||v v^T||_F <= R^2 + c^2`.

    Rows v are clipped to norm `R` and extended by `c`. `outer_product_factor` says how far a record moves the matrix.
    """
    return R**2 + c**2


def second_moment(x: ArrayLike, R: float, c: float, grid: float = 0.0) -> Matrix | NDArray[np.int64]:
    """Sum of outer products of the rows of `x` [n, d], clipped to norm `R` and extended by `c`: [d+1, d+1].

    A row with a non-finite value counts as zeros. `R` may be infinite (no clip). With a `grid` the sum over every
    `SUM_CHUNK` rows is rounded to it, and the result is integers: one row moves one such sum only, so rounding errors
    do not grow with the number of rows.
    """
    positive("R", R)
    positive("c", c)
    rows = np.asarray(x)
    if grid and (len(rows) > MOST_SUMMED or rows.shape[1] >= MOST_COLUMNS):
        raise ConfigError(
            f"a private start takes at most {MOST_SUMMED:,} records of fewer than {MOST_COLUMNS:,} columns, got "
            f"{len(rows):,} of {rows.shape[1]:,}; choose another start."
        )
    total = np.zeros((rows.shape[1] + 1, rows.shape[1] + 1), np.int64 if grid else np.float64)
    for start in range(0, len(rows), SUM_CHUNK):
        chunk = rows[start : start + SUM_CHUNK].astype(np.float64)
        chunk[~np.isfinite(chunk).all(axis=1)] = 0.0
        if math.isfinite(R):
            with np.errstate(over="ignore"):  # a row whose norm overflows becomes zeros
                chunk *= R / np.maximum(np.linalg.norm(chunk, axis=1, keepdims=True), R)
        extended = np.hstack([chunk, np.full((len(chunk), 1), c)])
        products = extended.T @ extended
        total += np.rint(products / grid).astype(np.int64) if grid else products
    return total


def pca_start(x: ArrayLike, embedding: int, *, floor: float) -> LinearStart:
    """Whitened principal components of `x` [n, d] without privacy: nothing clipped, nothing added."""
    rows = np.asarray(x)
    return _components(second_moment(rows, math.inf, 1.0).astype(np.float64), len(rows), 1.0, embedding, floor)


def dp_pca_start(x: ArrayLike, embedding: int, *, R: float, c: float, noise: MatrixNoise, floor: float) -> LinearStart:
    """Whitened principal components of `x` [n, d] from its noisy second moments.

    `floor` is the public least eigenvalue of the covariance.

    Formal guarantee: everything returned is computed from the noisy matrix and public constants.
    """
    rows = np.asarray(x)
    return _components(_noisy_moment(rows, R, c, noise), len(rows), c, embedding, floor)


def whiten_start(x: ArrayLike, *, floor: float) -> Whitening:
    """Whitening of `x` [n, d] without privacy: nothing clipped, nothing added."""
    rows = np.asarray(x)
    return _whitening(second_moment(rows, math.inf, 1.0).astype(np.float64), len(rows), 1.0, floor)


def dp_whiten_start(x: ArrayLike, *, R: float, c: float, noise: MatrixNoise, floor: float) -> Whitening:
    """Whitening of `x` [n, d] from its noisy second moments; `floor` is the least that is added to every variance.

    Formal guarantee: everything returned is computed from the noisy matrix and public constants.
    """
    rows = np.asarray(x)
    return _whitening(_noisy_moment(rows, R, c, noise), len(rows), c, floor)


def _noisy_moment(rows: NDArray[Any], R: float, c: float, noise: MatrixNoise) -> Matrix:
    """The second-moment matrix of `rows` [n, d] plus symmetric noise: [d+1, d+1].

    Formal guarantee: it is computed from the noisy upper triangle, and it is `mu_start`-GDP with noise of scale
    `moment_norm * outer_product_factor / mu_start`. The triangle with its off-diagonal entries times sqrt(2) has the
    Frobenius norm of the whole matrix, so noise of equal scale on that vector is enough, which is `scale / sqrt(2)` on
    the entries themselves.
    """
    scale, grid = noise.scale, noise.grid
    moment = second_moment(rows, R, c, grid)
    upper = np.triu_indices(len(moment))
    scales = np.where(upper[0] == upper[1], scale, scale / MIRRORED)
    noisy = np.zeros(moment.shape)
    noisy[upper] = (moment[upper] + noise.draw(scales, grid)) * (grid or 1.0)
    noisy += np.triu(noisy, 1).T
    return noisy


def set_linear(network: nn.Module, start: LinearStart) -> None:
    """Put `start` into `network`, which must be a linear map of the start's shape."""
    shape = tuple(network.weight.shape) if isinstance(network, nn.Linear) else None
    if not isinstance(network, nn.Linear) or shape != start.weight.shape:
        raise ConfigError(
            f"a start of shape {start.weight.shape} needs a linear network of that shape, got "
            f"{shape or type(network).__name__}; set devices.model to 'linear'."
        )
    with torch.no_grad():
        network.weight.copy_(torch.from_numpy(start.weight))
        network.bias.copy_(torch.from_numpy(start.bias))


def set_whitening(network: WhitenedLinear, start: Whitening) -> None:
    """Put `start` into `network`."""
    with torch.no_grad():
        network.mean.copy_(torch.from_numpy(start.mean))
        network.matrix.copy_(torch.from_numpy(start.matrix))


def _moments(moment: Matrix, n: int, c: float) -> tuple[Matrix, Matrix]:
    """The mean [d] and the covariance [d, d] that a second-moment matrix of `n` rows stands for."""
    d = len(moment) - 1
    mean = moment[:d, d] / (n * c)
    return mean, moment[:d, :d] / n - np.outer(mean, mean)


def _whitening(moment: Matrix, n: int, c: float, floor: float) -> Whitening:
    """(covariance + ridge)^(-1/2), where the ridge is `RIDGE` mean variances, but at least the `floor`.

    Noise can make a variance negative; it then counts as 0.
    """
    mean, covariance = _moments(moment, n, c)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    ridge = max(RIDGE * float(eigenvalues.mean()), positive("floor", floor))
    return Whitening(mean, (vectors / np.sqrt(np.maximum(eigenvalues, 0.0) + ridge)) @ vectors.T)


def _components(moment: Matrix, n: int, c: float, embedding: int, floor: float) -> LinearStart:
    positive("floor", floor)
    d = len(moment) - 1
    if embedding > d:
        raise ConfigError(
            f"a pca start of {d} features gives at most {d} components, got devices.embedding = {embedding}; lower it."
        )
    mean, covariance = _moments(moment, n, c)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    top = np.argsort(eigenvalues)[::-1][:embedding]
    directions = vectors[:, top].T
    # an eigenvector's sign is arbitrary; fixing it makes the start the same on every machine
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(embedding), largest])[:, None]
    weight = directions / np.sqrt(np.maximum(eigenvalues[top], floor))[:, None]
    return LinearStart(weight, -weight @ mean)
