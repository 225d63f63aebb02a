"""The noise: the right variance (and no other), the right shape, reproducible, absent when it must be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpzv.privacy.noise import NoiseSource, SeededNoise

SIGMA = 0.037
DRAWS = 4000
ALPHA = 1e-6
"""Two-sided error rate of each test below: a correct source fails one seed in a million."""


def releases(*, seed: int, sigma_dp: float, n: int = DRAWS) -> np.ndarray:
    source: NoiseSource = SeededNoise(seed)
    return np.array(
        [source.release(total=3 << 30, grid=2.0**-32, B=3, sigma_dp=sigma_dp, t=t, m=t % 7) - 0.25 for t in range(n)]
    )


def variance_accepted(values: np.ndarray, sigma_dp: float) -> bool:
    """Chi-square test of ``variance = sigma_dp^2`` at confidence 1 - ALPHA, mean known to be 0."""
    statistic = float(np.sum(values**2)) / sigma_dp**2
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(values))
    return bool(low <= statistic <= high)


@pytest.mark.parametrize("seed", range(5))
def test_variance_is_accepted_and_others_are_rejected(seed: int) -> None:
    assert variance_accepted(releases(seed=seed, sigma_dp=SIGMA), SIGMA)
    assert not variance_accepted(releases(seed=seed, sigma_dp=0.8 * SIGMA), SIGMA)
    assert not variance_accepted(releases(seed=seed, sigma_dp=1.25 * SIGMA), SIGMA)


def test_shape_is_normal_and_no_other() -> None:
    """Kolmogorov-Smirnov accepts the normal law and rejects a uniform one of the same variance."""
    values = releases(seed=11, sigma_dp=SIGMA, n=20_000) / SIGMA
    assert stats.kstest(values, "norm").pvalue > ALPHA
    assert stats.kstest(values, stats.uniform(-(3**0.5), 2 * 3**0.5).cdf).pvalue < ALPHA


def test_streams_are_unrelated() -> None:
    """Correlation between rounds, devices and seeds stays within five standard errors of 0."""
    a = releases(seed=1, sigma_dp=1.0)
    b = releases(seed=2, sigma_dp=1.0)
    bound = 5 / np.sqrt(DRAWS)
    assert abs(np.mean(a * b)) < bound
    assert abs(np.mean(a[1:] * a[:-1])) < bound
    source = SeededNoise(1)
    device = {m: source.release(total=0, grid=1.0, B=1, sigma_dp=1.0, t=5, m=m) for m in range(7)}
    assert len(set(device.values())) == 7


def test_same_name_same_noise() -> None:
    again = SeededNoise(4).release(total=17, grid=0.5, B=3, sigma_dp=2.0, t=9, m=1)
    assert SeededNoise(4).release(total=17, grid=0.5, B=3, sigma_dp=2.0, t=9, m=1) == again
    assert SeededNoise(5).release(total=17, grid=0.5, B=3, sigma_dp=2.0, t=9, m=1) != again
    assert SeededNoise(4).name == "seeded"


@pytest.mark.parametrize(("total", "grid", "B"), [(123_456_789, 0.3 / 2**40, 7), (0.1 + 0.2, 1.0, 3), (-5, 1.0, 6)])
def test_without_sigma_the_mean_is_bit_exact(total: float, grid: float, B: int) -> None:
    Delta = SeededNoise(0).release(total=total, grid=grid, B=B, sigma_dp=0.0, t=0, m=0)
    assert Delta.hex() == (total * grid / B).hex()


def test_gaussian_stream() -> None:
    source = SeededNoise(3)
    values = source.gaussian((100, 200), "start", 1)
    assert values.shape == (100, 200)
    assert values.dtype == np.float64
    assert variance_accepted(values.ravel(), 1.0)
    assert not variance_accepted(1.25 * values.ravel(), 1.0)
    np.testing.assert_array_equal(values, SeededNoise(3).gaussian((100, 200), "start", 1))
    assert not np.array_equal(values, source.gaussian((100, 200), "start", 2))
