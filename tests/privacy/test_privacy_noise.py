"""The noise: the right variance (and no other), the right shape, secret or reproducible, absent when it must be."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest
from scipy import stats

from dpzv.errors import ConfigError
from dpzv.privacy.events import PlannedRelease, grid_scale
from dpzv.privacy.head_steps import HeadNoise, poisson_batch
from dpzv.privacy.noise import ExactNoise, NoiseSource, SeededNoise
from dpzv.rng import seed_of
from dpzv.zo.clipping import clipped_sum

SIGMA = 0.037
DRAWS = 4000
ALPHA = 1e-6
"""Two-sided error rate of each test below: a correct source fails one seed in a million."""


def releases(*, seed: int, sigma_dp: float, n: int = DRAWS) -> np.ndarray:
    return noise_of(SeededNoise(seed), sigma_dp, n)


def noise_of(source: NoiseSource, sigma_dp: float, n: int) -> np.ndarray:
    """What `source` adds to a mean of 1/4."""
    return np.array(
        [
            source.release(np.array([3 << 30]), grid=2.0**-32, divisor=3, sigma_dp=sigma_dp, t=t, m=t % 7)[0] - 0.25
            for t in range(n)
        ]
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
    device = {m: source.release(np.array([0]), grid=1.0, divisor=1, sigma_dp=1.0, t=5, m=m)[0] for m in range(7)}
    assert len(set(device.values())) == 7


def test_same_name_same_noise() -> None:
    again = SeededNoise(4).release(np.array([17]), grid=0.5, divisor=3, sigma_dp=2.0, t=9, m=1)[0]
    assert SeededNoise(4).release(np.array([17]), grid=0.5, divisor=3, sigma_dp=2.0, t=9, m=1)[0] == again
    assert SeededNoise(5).release(np.array([17]), grid=0.5, divisor=3, sigma_dp=2.0, t=9, m=1)[0] != again
    assert SeededNoise(4).name == "seeded"


@pytest.mark.parametrize(("total", "grid", "B"), [(123_456_789, 0.3 / 2**40, 7), (0.1 + 0.2, 1.0, 3), (-5, 1.0, 6)])
def test_without_sigma_the_mean_is_bit_exact(total: float, grid: float, B: int) -> None:
    Delta = SeededNoise(0).release(np.array([total]), grid=grid, divisor=B, sigma_dp=0.0, t=0, m=0)[0]
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


# --- the secret source ----------------------------------------------------------------------------


def test_secret_variance_is_accepted_and_others_are_rejected() -> None:
    source = ExactNoise()
    assert variance_accepted(noise_of(source, SIGMA, DRAWS // 2), SIGMA)
    assert not variance_accepted(noise_of(source, 0.8 * SIGMA, DRAWS // 2), SIGMA)
    assert not variance_accepted(noise_of(source, 1.25 * SIGMA, DRAWS // 2), SIGMA)


def test_secret_shape_is_normal_and_on_the_grid() -> None:
    values = noise_of(ExactNoise(), SIGMA, DRAWS)
    assert stats.kstest(values / SIGMA, "norm").pvalue > ALPHA
    assert stats.kstest(values / SIGMA, stats.uniform(-(3**0.5), 2 * 3**0.5).cdf).pvalue < ALPHA
    steps = (values + 0.25) * 3 * 2.0**32
    np.testing.assert_allclose(steps, np.round(steps), rtol=0, atol=1e-5)


def test_a_coarse_grid_shows_the_discrete_gaussian() -> None:
    """Noise of scale 2 on integers: frequencies of the discrete Gaussian, and not of one of scale 1.6."""

    def accepted(scale: float) -> bool:
        ks = np.arange(-12, 13)
        weights = np.exp(-(ks**2) / (2 * scale**2))
        expected = DRAWS * weights / weights.sum()
        seen = np.array([(values == k).sum() for k in ks])
        inner = slice(6, -6)  # cells with enough counts; the rest is one cell
        got = np.append(seen[inner], DRAWS - seen[inner].sum())
        want = np.append(expected[inner], DRAWS - expected[inner].sum())
        return bool(stats.chisquare(got, want).pvalue > ALPHA)

    source = ExactNoise()
    values = np.array(
        [source.release(np.array([7]), grid=1.0, divisor=1, sigma_dp=2.0, t=t, m=1)[0] - 7 for t in range(DRAWS)]
    )
    assert accepted(2.0)
    assert not accepted(1.6)


def test_large_sums_do_not_saturate() -> None:
    total = (1 << 60) - 3
    Delta = ExactNoise().release(np.array([total]), grid=2.0**-60, divisor=1 << 20, sigma_dp=1e-12, t=0, m=0)[0]
    assert Delta == pytest.approx(2.0**-20, rel=1e-3)


@pytest.mark.parametrize("total", [1.5, 3.0, np.int32(3), True, float("nan")])
def test_only_integers_get_secret_noise(total: float) -> None:
    with pytest.raises(ConfigError, match="integer sum"):
        ExactNoise().release(np.array([total]), grid=1.0, divisor=1, sigma_dp=1.0, t=0, m=0)[0]


def test_secret_noise_that_does_not_fit_is_refused_whatever_the_sum() -> None:
    for total in (0, 1 << 40):
        with pytest.raises(ConfigError, match="64 bits"):
            ExactNoise().release(np.array([total]), grid=2.0**-60, divisor=1, sigma_dp=1.0, t=0, m=0)[0]


def test_without_sigma_the_secret_source_adds_nothing() -> None:
    assert (
        ExactNoise().release(np.array([0.1 + 0.2]), grid=1.0, divisor=3, sigma_dp=0.0, t=0, m=0)[0] == (0.1 + 0.2) / 3
    )


def candidate_noises(seed: int, n: int) -> dict[str, np.ndarray]:
    """What somebody who knows the run's public seeds would try: every stream, every generator, every round."""
    found = {}
    for name in ("noise", "direction", "schedule", "head", "gaussian", "generator"):
        for stream in ((seed, name), (seed, name, 1), (name, seed)):
            base = seed_of(*stream)
            found[f"numpy {stream}"] = np.random.default_rng(base).standard_normal(n)
            found[f"source {stream}"] = noise_of(SeededNoise(base), 1.0, n)
        each = [np.random.default_rng(seed_of(seed, name, 1, t)).standard_normal() for t in range(n)]
        found[f"each round {name}"] = np.array(each)
    found["source of the seed"] = noise_of(SeededNoise(seed), 1.0, n)
    found["numpy of the seed"] = np.random.default_rng(seed).standard_normal(n)
    return found


def test_no_seed_a_device_knows_explains_the_secret_noise() -> None:
    """The residual correlates with no candidate; the same search finds seeded noise at once."""
    n, seed = 400, 7
    candidates = candidate_noises(seed, n)

    def explained(noise: np.ndarray) -> list[str]:
        bound = 6 / np.sqrt(n)  # six standard errors of an unrelated stream
        return [name for name, other in candidates.items() if abs(np.corrcoef(noise, other)[0, 1]) > bound]

    assert explained(noise_of(ExactNoise(), SIGMA, n)) == []
    assert explained(noise_of(SeededNoise(seed_of(seed, "noise")), SIGMA, n)) == [f"source {(seed, 'noise')}"]


def sample(source: NoiseSource, D: int, q: float, step: int) -> np.ndarray:
    """The records of a head step."""
    return poisson_batch(source.generator("step", step), D, q)


def test_two_secret_sources_never_agree() -> None:
    a, b = ExactNoise(), ExactNoise()
    assert a.name == "exact"
    assert not np.array_equal(a.gaussian((5,), "start", 1), b.gaussian((5,), "start", 1))
    assert not np.array_equal(a.gaussian((5,), "start", 1), a.gaussian((5,), "start", 1))
    assert not np.array_equal(sample(a, 10_000, 0.1, 1), sample(a, 10_000, 0.1, 1))
    assert a.generator("x").bit_generator.random_raw() != a.generator("x").bit_generator.random_raw()
    with pytest.raises(TypeError):
        ExactNoise(3)  # type: ignore[call-arg]


def test_noise_drawn_ahead_is_used_once_whoever_copies_the_source() -> None:
    """Scale 2^40: two equal values would be a wonder."""

    def drawn(source: ExactNoise, sigma_dp: float = 2.0**40) -> list[float]:
        total = np.array([0])
        return [source.release(total, grid=1.0, divisor=1, sigma_dp=sigma_dp, t=t, m=1)[0] for t in range(3)]

    source = ExactNoise()
    before = drawn(source)  # more of the block is left
    copies = [drawn(copy.deepcopy(source)), drawn(pickle.loads(pickle.dumps(source)))]
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, np.array(drawn(source)).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    forked = np.frombuffer(os.read(reading, 100)).tolist()
    other = drawn(source, 2.0**41)  # another scale begins a block of its own
    found = [*before, *copies[0], *copies[1], *forked, *other, *drawn(source)]
    assert len(found) == len(set(found)) == 18


def test_secret_gaussian_stream() -> None:
    values = ExactNoise().gaussian((100, 200), "head", 3).ravel()
    assert values.dtype == np.float64
    assert variance_accepted(values, 1.0)
    assert not variance_accepted(1.25 * values, 1.0)
    assert stats.kstest(values, "norm").pvalue > ALPHA


def test_the_grid_of_the_account_is_the_grid_of_the_sum() -> None:
    C = 0.3
    event = PlannedRelease(t=0, m=0, position=0, B=1, C=C, sigma_dp=1.0)
    assert grid_scale(event) == pytest.approx(1 / clipped_sum(np.zeros(1), C).grid, rel=1e-15)


# --- coins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.003, 0.13, 0.7])
@pytest.mark.parametrize("source", [ExactNoise(), SeededNoise(5)])
def test_coins_are_one_per_record(source: NoiseSource, q: float) -> None:
    """Batch sizes are binomial, every record is as likely, neighbours are independent."""
    D, steps = 400, 1000
    drawn = np.zeros((steps, D), dtype=bool)
    for step in range(steps):
        ids = sample(source, D, q, step)
        assert (np.diff(ids) > 0).all()
        drawn[step, ids] = True
    sizes = drawn.sum(axis=1)
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], steps)
    assert low < ((sizes - q * D) ** 2).sum() / (D * q * (1 - q)) < high
    assert abs(sizes.mean() - q * D) < 5 * np.sqrt(D * q * (1 - q) / steps)
    counts = drawn.sum(axis=0)
    assert np.abs(counts - q * steps).max() < 6 * np.sqrt(steps * q * (1 - q)) + 3
    pairs = (drawn[:, 1:] & drawn[:, :-1]).mean()
    assert abs(pairs - q * q) < 6 * q / np.sqrt(steps * D) * 2


def test_coins_at_the_ends() -> None:
    np.testing.assert_array_equal(sample(SeededNoise(1), 5, 1.0, 0), np.arange(5))
    assert len(sample(SeededNoise(1), 5, 1e-9, 0)) == 0
    generator = np.random.default_rng(0)
    assert all(poisson_batch(generator, 3, 0.9).max(initial=0) < 3 for _ in range(200))
    for q in (0.0, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="sampling probability"):
            poisson_batch(generator, 5, q)


def test_a_head_step_samples_at_the_public_rate_and_its_noise_has_no_memory() -> None:
    """Its sample is drawn before its noise, from the stream of its round; independent noise keeps no state."""
    noise, again = (HeadNoise(SeededNoise(3), D=50, batch=20, z=4.0, C_0=0.5) for _ in range(2))
    (ids, stream), same = noise.sample(7, 1), SeededNoise(3).generator("head", 7, 1)
    np.testing.assert_array_equal(ids, poisson_batch(same, 50, 20 / 50))
    added, state = noise.update(noise.init([(2,)]), stream, [(2, 3), (4,)])
    np.testing.assert_array_equal(added[0], 4.0 * 0.5 * same.standard_normal((2, 3)))
    np.testing.assert_array_equal(added[1], 4.0 * 0.5 * same.standard_normal(4))
    assert noise.init([(2,)]) == state == ()
    assert not np.array_equal(again.sample(7, 1)[0], again.sample(7, 2)[0])


def test_seeded_coins_and_generators_repeat_by_name() -> None:
    a, b = SeededNoise(2), SeededNoise(2)
    np.testing.assert_array_equal(sample(a, 1000, 0.2, 4), sample(b, 1000, 0.2, 4))
    assert not np.array_equal(sample(a, 1000, 0.2, 4), sample(a, 1000, 0.2, 5))
    assert a.generator("h").random() == b.generator("h").random() != a.generator("i").random()


@pytest.mark.parametrize("source", [SeededNoise(5), ExactNoise()], ids=["seeded", "exact"])
def test_the_numbers_of_a_release_have_independent_noise_of_one_size(source: NoiseSource) -> None:
    """Each has its own variance and no correlation with the others, or with those of the next release."""
    K, n = 5, 800
    means = np.arange(K) << 30
    drawn = (
        np.array([source.release(means, grid=2.0**-32, divisor=3, sigma_dp=SIGMA, t=t, m=1) for t in range(n)])
        - np.arange(K) / 12
    )
    for values in drawn.T:
        assert variance_accepted(values, SIGMA)
    unit = drawn / SIGMA
    bound = 6 / np.sqrt(n)
    assert np.abs(unit.T @ unit / n - np.eye(K)).max() < 1.5 * bound
    assert np.abs(unit[1:].T @ unit[:-1] / n).max() < bound
    assert len(np.unique(drawn)) == K * n  # no value is used twice, also across blocks that are drawn ahead
