"""Starts of a linear device network from its own features: principal components, plain or private.

Both see the features only through one matrix: the sum over records of the outer product of the row with
itself, each row clipped to norm `R` and extended by a public constant `c`. Mean, scales and directions all
follow from it. `pca_start` uses it as it is, which costs no budget only if labels alone are protected;
`dp_pca_start` adds Gaussian noise to it first, once, drawn by the device itself and kept secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from dpzv.errors import ConfigError
from dpzv.sensitivity import outer_product_factor
from dpzv.terms import Neighbours
from dpzv.validate import positive

__all__ = ["LinearStart", "dp_pca_start", "moment_sensitivity", "pca_start", "second_moment", "set_linear"]

Matrix = NDArray[np.float64]
Gaussian = Callable[[tuple[int, ...]], Matrix]
"""Independent standard normal numbers of a shape."""

CHUNK = 8192  # records at a time in float64


@dataclass(frozen=True, slots=True)
class LinearStart:
    """The map `x -> weight @ x + bias`: weight [k, d], bias [k], float64."""

    weight: Matrix
    bias: Matrix


def moment_sensitivity(R: float, c: float, neighbours: Neighbours) -> float:
    """How far one record moves the second-moment matrix, in Frobenius norm.

    Formal guarantee: `||v v^T||_F <= R^2 + c^2` (zero-out) and `||v v^T - w w^T||_F <= sqrt(2) (R^2 + c^2)`
    (replace-one) for rows clipped to `R` and extended by `c`, since the cross term `-2 (v.w)^2` can only lower it.
    """
    return (R**2 + c**2) * outer_product_factor(neighbours)


def second_moment(x: ArrayLike, R: float, c: float) -> Matrix:
    """Sum of outer products of the rows of `x` [n, d], clipped to norm `R` and extended by `c`: [d+1, d+1].

    A row with a non-finite value counts as zeros. `R` may be infinite (no clip).
    """
    positive("R", R)
    positive("c", c)
    rows = np.asarray(x)
    total = np.zeros((rows.shape[1] + 1, rows.shape[1] + 1))
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK].astype(np.float64)
        chunk[~np.isfinite(chunk).all(axis=1)] = 0.0
        if math.isfinite(R):
            with np.errstate(over="ignore"):  # a row whose norm overflows becomes zeros
                chunk *= R / np.maximum(np.linalg.norm(chunk, axis=1, keepdims=True), R)
        extended = np.hstack([chunk, np.full((len(chunk), 1), c)])
        total += extended.T @ extended
    return total


def pca_start(x: ArrayLike, embedding: int, *, floor: float) -> LinearStart:
    """Whitened principal components of `x` [n, d] without privacy: nothing clipped, nothing added."""
    rows = np.asarray(x)
    return _whitening(second_moment(rows, math.inf, 1.0), len(rows), 1.0, embedding, floor)


def dp_pca_start(
    x: ArrayLike, embedding: int, *, R: float, c: float, scale: float, gaussian: Gaussian, floor: float
) -> LinearStart:
    """Whitened principal components of `x` [n, d] from its noisy second moments.

    `scale` is the noise's standard deviation in each entry of the symmetric matrix; `mu_start`-GDP needs
    `moment_sensitivity / mu_start`. `gaussian` draws it: secretly, or seeded for simulation. `floor` is the
    public least eigenvalue of the covariance.

    Formal guarantee: everything returned is computed from the noisy matrix and the public number of records n.
    The noise is drawn for the upper triangle, whose sensitivity is at most that of the whole matrix.
    """
    rows = np.asarray(x)
    moment = second_moment(rows, R, c)
    upper = np.triu_indices(len(moment))
    noise = np.zeros_like(moment)
    noise[upper] = scale * gaussian((len(upper[0]),))
    noise += np.triu(noise, 1).T
    return _whitening(moment + noise, len(rows), c, embedding, floor)


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


def _whitening(moment: Matrix, n: int, c: float, embedding: int, floor: float) -> LinearStart:
    positive("floor", floor)
    d = len(moment) - 1
    if embedding > d:
        raise ConfigError(
            f"a pca start of {d} features gives at most {d} components, got devices.embedding = {embedding}; lower it."
        )
    mean = moment[:d, d] / (n * c)
    covariance = moment[:d, :d] / n - np.outer(mean, mean)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    top = np.argsort(eigenvalues)[::-1][:embedding]
    directions = vectors[:, top].T
    # an eigenvector's sign is arbitrary; fixing it makes the start the same on every machine
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(embedding), largest])[:, None]
    weight = directions / np.sqrt(np.maximum(eigenvalues[top], floor))[:, None]
    return LinearStart(weight, -weight @ mean)
