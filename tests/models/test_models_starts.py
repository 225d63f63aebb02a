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
from dpzv.models.dense import WhitenedLinear
from dpzv.models.rowwise import require_rowwise
from dpzv.models.starts import (
    RIDGE,
    MatrixNoise,
    dp_pca_start,
    dp_whiten_start,
    moment_norm,
    pca_start,
    second_moment,
    set_linear,
    set_whitening,
    whiten_start,
)
from dpzv.privacy.plan import SUM_SLACK
from dpzv.sensitivity import outer_product_factor


def data(n: int = 3000) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.standard_normal((n, 6)) @ generator.standard_normal((6, 6)) + 2.0


def zeros(scales: np.ndarray, grid: float) -> np.ndarray:
    return np.zeros(scales.shape)


@pytest.mark.parametrize("kind", ["plain", "private without noise"])
def test_without_noise_it_is_whitening_by_pca(kind: str) -> None:
    x = data()
    if kind == "plain":
        start = pca_start(x, 4, floor=1e-9)
    else:
        start = dp_pca_start(x, 4, R=1e6, c=3.0, noise=MatrixNoise(1.0, 0.0, zeros), floor=1e-9)
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
    assert np.linalg.norm(with_first - with_second) <= moment_norm(R, c) * outer_product_factor("replace-one") * slack
    without = second_moment(others, R, c)
    assert np.linalg.norm(with_first - without) <= moment_norm(R, c) * outer_product_factor("zero-out") * slack
    # what is noised is the upper triangle
    moved = np.triu(with_first - with_second)
    assert np.linalg.norm(moved) <= moment_norm(R, c) * outer_product_factor("replace-one") * slack


def test_the_sensitivity_is_nearly_reached() -> None:
    R, c = 10.0, 0.1
    a = second_moment(np.array([[R, 0.0]]), R, c)
    b = second_moment(np.array([[0.0, R]]), R, c)
    moved = np.linalg.norm(a - b)
    most = moment_norm(R, c) * outer_product_factor("replace-one")
    assert 0.999 * most < moved <= most


def test_chunks_and_non_finite_rows() -> None:
    x = np.random.default_rng(1).standard_normal((20_000, 3))
    extended = np.hstack([x, np.ones((20_000, 1))])
    np.testing.assert_allclose(second_moment(x, math.inf, 1.0), extended.T @ extended)
    bad = np.array([[1.0, 2.0], [np.nan, 5.0], [np.inf, 0.0]])
    np.testing.assert_array_equal(second_moment(bad, 100.0, 2.0)[:2, :2], np.outer(bad[0], bad[0]))


def test_noise_has_the_stated_scale_and_is_symmetric() -> None:
    """The matrix that the start is computed from: recovered from the start of a one-record data set."""
    drawn: list[np.ndarray] = []

    def gaussian(scales: np.ndarray, grid: float) -> np.ndarray:
        drawn.append(scales)
        return scales * np.random.default_rng(3).standard_normal(scales.shape)

    x = data()
    start = dp_pca_start(x, 6, R=1e6, c=1.0, noise=MatrixNoise(50.0, 0.0, gaussian), floor=1e-9)
    assert [one.shape for one in drawn] == [(28,)]  # the upper triangle of 7 x 7
    scales = np.zeros((7, 7))
    scales[np.triu_indices(7)] = drawn[0]
    assert np.array_equal(np.diag(scales), [50.0] * 7)
    assert np.array_equal(scales[np.triu_indices(7, 1)], [50.0 / math.sqrt(2)] * 21)
    noise = np.zeros((7, 7))
    noise[np.triu_indices(7)] = gaussian(drawn[0], 0.0)
    noise = noise + np.triu(noise, 1).T
    moment = second_moment(x, 1e6, 1.0) + noise
    mean = moment[:6, 6] / len(x)
    covariance = moment[:6, :6] / len(x) - np.outer(mean, mean)
    np.testing.assert_allclose(start.weight @ covariance @ start.weight.T, np.eye(6), atol=1e-8)
    np.testing.assert_allclose(start.weight @ mean + start.bias, 0, atol=1e-8)


def test_a_start_on_a_grid_follows_from_integers() -> None:
    """Rounding the matrix changes the start by less than 1e-6; what noise is added to are integers."""
    x, grid = data(), 2.0**-20
    seen: list[float] = []

    def nothing(scales: np.ndarray, grid: float) -> np.ndarray:
        seen.append(grid)
        return np.zeros(scales.shape, np.int64)

    plain = dp_pca_start(x, 6, R=1e6, c=1.0, noise=MatrixNoise(1.0, 0.0, zeros), floor=1e-9)
    start = dp_pca_start(x, 6, R=1e6, c=1.0, noise=MatrixNoise(1.0, grid, nothing), floor=1e-9)
    assert seen == [grid]
    np.testing.assert_allclose(start.weight, plain.weight, rtol=1e-6, atol=1e-7)
    moment = second_moment(np.tile(x, (4, 1)), 1e6, 1.0, grid)  # 12,000 rows: two sums in float64
    assert moment.dtype == np.int64
    np.testing.assert_allclose(moment * grid, 4 * second_moment(x, 1e6, 1.0), rtol=1e-9, atol=2 * grid)
    with pytest.raises(ConfigError, match=r"at most 16,777,216 records of fewer than 16,384 columns, got 2 of 16,384"):
        second_moment(np.zeros((2, 16_384)), 1.0, 1.0, grid)


@given(rows, st.floats(0.1, 100), st.floats(0.1, 10))
def test_scaled_noise_covers_the_scaled_triangle(pair: np.ndarray, R: float, c: float) -> None:
    """The triangle with off-diagonal entries times sqrt(2), on which the noise is equal, moves by the sensitivity."""
    upper = np.triu_indices(5)
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    grid = 2.0 ** (math.frexp(R**2 + c**2)[1] - 37)
    first, second = (second_moment(np.vstack([data(20)[:, :4], row[None]]), R, c, grid) for row in pair)
    moved = np.linalg.norm((first - second)[upper] * weights * grid)
    assert moved <= moment_norm(R, c) * outer_product_factor("replace-one") * (1 + SUM_SLACK)


def test_the_floor_bounds_what_is_blown_up() -> None:
    x = np.hstack([data(), np.zeros((3000, 2))])
    start = dp_pca_start(x, 8, R=100.0, c=1.0, noise=MatrixNoise(1.0, 0.0, lambda s, grid: -s), floor=0.04)
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


@pytest.mark.parametrize("kind", ["plain", "private without noise"])
def test_whitened_columns_have_equal_deviations_and_no_correlation(kind: str) -> None:
    x = data()
    covariance = np.cov(x.T, bias=True)
    if kind == "plain":
        start = whiten_start(x, floor=1e-9)
    else:
        start = dp_whiten_start(x, R=1e6, c=3.0, noise=MatrixNoise(1.0, 0.0, zeros), floor=1e-9)
    ridge = RIDGE * np.trace(covariance) / 6
    np.testing.assert_allclose(start.matrix @ start.matrix @ (covariance + ridge * np.eye(6)), np.eye(6), atol=1e-6)
    np.testing.assert_allclose(start.mean, x.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(start.matrix, start.matrix.T, atol=1e-12)


def test_whitening_uses_the_noisy_matrix_of_principal_components() -> None:
    """The same noise on the same matrix, so the same charge: the covariance can be computed back from the map."""
    x, asked_for = data(500), []

    def draw(scales: np.ndarray, grid: float) -> np.ndarray:
        asked_for.append(scales)
        return np.random.default_rng(5).standard_normal(scales.shape) * scales

    noise = MatrixNoise(40.0, 0.0, draw)
    found = dp_whiten_start(x, R=9.0, c=1.0, noise=noise, floor=1e-3)
    dp_pca_start(x, 3, R=9.0, c=1.0, noise=noise, floor=1e-3)
    np.testing.assert_array_equal(asked_for[0], asked_for[1])
    clean = dp_whiten_start(x, R=9.0, c=1.0, noise=MatrixNoise(1.0, 0.0, zeros), floor=1e-3)
    assert np.abs(found.matrix - clean.matrix).max() > 1e-3
    drowned = dp_whiten_start(x, R=9.0, c=1.0, noise=MatrixNoise(1e6, 0.0, draw), floor=50.0)  # negative variances
    assert np.isfinite(drowned.matrix).all()
    assert np.linalg.eigvalsh(drowned.matrix).max() <= 1 / math.sqrt(50.0) + 1e-9


def test_a_whitened_device_is_the_linear_map_of_whitened_columns() -> None:
    x = data(50).astype(np.float32)
    start, network = whiten_start(x, floor=1e-3), WhitenedLinear(linear(6, 2, torch.Generator().manual_seed(0)))
    plain = network(torch.from_numpy(x))
    torch.testing.assert_close(plain, network.linear(torch.from_numpy(x)))
    set_whitening(network, start)
    by_hand = (x - start.mean) @ start.matrix @ network.linear.weight.detach().numpy().T
    np.testing.assert_allclose(network(torch.from_numpy(x)).detach().numpy(), by_hand, atol=1e-4)
    assert [name for name, _ in network.named_parameters()] == ["linear.weight", "linear.bias"]
    assert require_rowwise(network, torch.from_numpy(x), name="device 1") == 2
