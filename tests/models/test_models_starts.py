"""Principal-component starts: an oracle without noise, the stated sensitivity, and what noise does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dense_networks import linear
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.decomposition import PCA

from dpzv.errors import ConfigError
from dpzv.models.starts import dp_pca_start, moment_sensitivity, pca_start, second_moment, set_linear


def data(n: int = 3000) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.standard_normal((n, 6)) @ generator.standard_normal((6, 6)) + 2.0


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape)


@pytest.mark.parametrize("kind", ["plain", "private without noise"])
def test_without_noise_it_is_whitening_by_pca(kind: str) -> None:
    x = data()
    if kind == "plain":
        start = pca_start(x, 4, floor=1e-9)
    else:
        start = dp_pca_start(x, 4, R=1e6, c=3.0, scale=1.0, gaussian=zeros, floor=1e-9)
    ours = x @ start.weight.T + start.bias
    theirs = PCA(4, whiten=True).fit_transform(x) * math.sqrt(len(x) / (len(x) - 1))  # it divides by n - 1
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours, theirs * signs, atol=1e-6)
    np.testing.assert_allclose(ours.T @ ours / len(x), np.eye(4), atol=1e-6)


rows = hnp.arrays(np.float64, (2, 4), elements=st.floats(-1e200, 1e200))


@given(rows, st.floats(0.1, 100), st.floats(0.1, 10))
def test_one_record_moves_the_matrix_by_at_most_its_sensitivity(pair: np.ndarray, R: float, c: float) -> None:
    others = data(20)[:, :4]
    with_first = second_moment(np.vstack([others, pair[:1]]), R, c)
    with_second = second_moment(np.vstack([others, pair[1:]]), R, c)
    slack = 1 + 1e-9  # float64 sums of 21 terms
    assert np.linalg.norm(with_first - with_second) <= moment_sensitivity(R, c, "replace-one") * slack
    without = second_moment(others, R, c)
    assert np.linalg.norm(with_first - without) <= moment_sensitivity(R, c, "zero-out") * slack
    # what is noised is the upper triangle
    moved = np.triu(with_first - with_second)
    assert np.linalg.norm(moved) <= moment_sensitivity(R, c, "replace-one") * slack


def test_the_sensitivity_is_nearly_reached() -> None:
    R, c = 10.0, 0.1
    a = second_moment(np.array([[R, 0.0]]), R, c)
    b = second_moment(np.array([[0.0, R]]), R, c)
    moved = np.linalg.norm(a - b)
    assert 0.999 * moment_sensitivity(R, c, "replace-one") < moved <= moment_sensitivity(R, c, "replace-one")


def test_chunks_and_non_finite_rows() -> None:
    x = np.random.default_rng(1).standard_normal((20_000, 3))
    extended = np.hstack([x, np.ones((20_000, 1))])
    np.testing.assert_allclose(second_moment(x, math.inf, 1.0), extended.T @ extended)
    bad = np.array([[1.0, 2.0], [np.nan, 5.0], [np.inf, 0.0]])
    np.testing.assert_array_equal(second_moment(bad, 100.0, 2.0)[:2, :2], np.outer(bad[0], bad[0]))


def test_noise_has_the_stated_scale_and_is_symmetric() -> None:
    """The matrix that the start is computed from: recovered from the start of a one-record data set."""
    drawn: list[np.ndarray] = []

    def gaussian(shape: tuple[int, ...]) -> np.ndarray:
        drawn.append(np.random.default_rng(3).standard_normal(shape))
        return drawn[-1]

    x = data()
    start = dp_pca_start(x, 6, R=1e6, c=1.0, scale=50.0, gaussian=gaussian, floor=1e-9)
    assert [one.shape for one in drawn] == [(28,)]  # the upper triangle of 7 x 7
    noise = np.zeros((7, 7))
    noise[np.triu_indices(7)] = 50.0 * drawn[0]
    noise = noise + np.triu(noise, 1).T
    moment = second_moment(x, 1e6, 1.0) + noise
    mean = moment[:6, 6] / len(x)
    covariance = moment[:6, :6] / len(x) - np.outer(mean, mean)
    np.testing.assert_allclose(start.weight @ covariance @ start.weight.T, np.eye(6), atol=1e-8)
    np.testing.assert_allclose(start.weight @ mean + start.bias, 0, atol=1e-8)


def test_the_floor_bounds_what_is_blown_up() -> None:
    x = np.hstack([data(), np.zeros((3000, 2))])
    start = dp_pca_start(x, 8, R=100.0, c=1.0, scale=1.0, gaussian=lambda s: -np.ones(s), floor=0.04)
    assert np.linalg.norm(start.weight, axis=1).max() <= 1 / math.sqrt(0.04) + 1e-9


def test_a_start_is_put_into_a_linear_network() -> None:
    x = data().astype(np.float32)
    network = linear(6, 4, torch.Generator().manual_seed(0))
    start = pca_start(x, 4, floor=1e-9)
    set_linear(network, start)
    np.testing.assert_allclose(
        network(torch.from_numpy(x)).detach().numpy(), x @ start.weight.T + start.bias, atol=1e-4
    )
    with pytest.raises(ConfigError, match="needs a linear network of that shape"):
        set_linear(linear(6, 3, torch.Generator().manual_seed(0)), start)
    with pytest.raises(ConfigError, match=r"at most 6 components, got devices\.embedding = 7"):
        pca_start(x, 7, floor=1e-9)
