"""Gaussian noise rounded to integers: its law at small and large scales, also where first bits do not decide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpzv.errors import ConfigError
from dpzv.privacy.noise import (
    LARGEST_SCALE,
    LEAST_SCALE,
    MARGIN,
    ExactNoise,
    SeededNoise,
    _cell,
    _table,
    rounded_gaussian,
)

ALPHA = 1e-6
"""The error rate of each test: a correct sampler fails one seed in a million."""


def stream(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def law_accepted(values: np.ndarray, scale: float) -> bool:
    """Chi-square test of every integer's probability; those met less than ten times are taken together."""
    k = np.arange(-8 * int(scale), 8 * int(scale) + 1)
    p = np.diff(stats.norm.cdf(np.append(k - 0.5, k[-1] + 0.5) / scale))
    found = np.bincount(values - k[0], minlength=len(k))
    often = p * len(values) >= 10
    p, found = np.append(p[often], 1 - p[often].sum()), np.append(found[often], found[~often].sum())
    return bool(stats.chisquare(found, p * len(values)).pvalue > ALPHA)


@pytest.mark.parametrize(("margin", "n"), [(MARGIN, 300_000), (2.0, 4_000)])
def test_every_integer_has_the_probability_of_its_cell(margin: float, n: int) -> None:
    """With margin 2 every proposal is decided by more bits and 80 digits."""
    values = rounded_gaussian(70.0, n, stream(1), margin=margin)
    assert values.dtype == np.int64
    assert law_accepted(values, 70.0)
    assert not law_accepted(rounded_gaussian(77.0, 4 * n, stream(2)), 70.0)
    assert not law_accepted(values + 30, 70.0)


@pytest.mark.parametrize("scale", [LEAST_SCALE, 63.9 * 64, 2.0**36 * 1.3, LARGEST_SCALE])
def test_large_scales(scale: float) -> None:
    values = rounded_gaussian(scale, 100_000, stream(3)) / scale
    assert stats.kstest(values + stream(4).uniform(-0.5, 0.5, len(values)) / scale, "norm").pvalue > ALPHA
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(values))
    assert low < float(np.sum(values**2)) < high
    assert not low < 1.05 * float(np.sum(values**2)) < high


def test_low_bits_are_as_random_as_high_ones() -> None:
    """At a large scale every residue is equally likely: no integer is out of reach."""
    values = rounded_gaussian(2.0**36, 200_000, stream(5))
    for modulus in (2, 3, 256):
        assert stats.chisquare(np.bincount(values % modulus)).pvalue > ALPHA


def test_a_cell_is_decided_by_further_bits() -> None:
    table = _table(70.0)
    assert np.all(np.diff(table.first.astype(object)) >= 0)
    word = int(table.first[5])
    share = float(table.whole[5] * 2**64) - word if word < 2**52 else float(table.whole[5] * 2**64 - word)
    drawn = [_cell(table, word, stream(seed)) for seed in range(300)]
    assert set(drawn) <= {5, 6}
    assert stats.binomtest(drawn.count(5), 300, share).pvalue > ALPHA
    assert _cell(table, 2**64 - 1, stream(0)) < len(table.whole)


class Words(np.random.Generator):
    """First bits that choose a cell by `word`, and a point at its left end that is kept; further bits are counted."""

    def __init__(self, word: int, further: bytes) -> None:
        super().__init__(np.random.Philox(key=0))
        self.word, self.further, self.asked = word, further, 0

    def integers(self, *_: Any) -> Any:
        """A point at the left end of a cell is always kept."""
        return np.repeat(np.array([[self.word], [0], [0]], np.uint64), 9, axis=1)

    def bytes(self, length: int) -> bytes:
        self.asked += 1
        return self.further * length


@pytest.mark.parametrize(
    ("beside", "further", "cell", "asked"),
    [(0, b"\0", 5, True), (0, b"\xff", 6, True), (-1, b"\xff", 5, False), (1, b"\0", 6, False)],
)
def test_further_bits_are_drawn_where_the_first_ones_do_not_decide(
    beside: int, further: bytes, cell: int, asked: bool
) -> None:
    table = _table(70.0)
    words = Words(int(table.first[5]) + beside, further)
    assert rounded_gaussian(70.0, 1, words).tolist() == [cell << table.log_width]
    assert (words.asked > 0) == asked


@pytest.mark.parametrize("scale", [0.0, 63.9, 2.0**58, math.inf, math.nan])
def test_other_scales_are_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match="noise on integers needs a scale"):
        rounded_gaussian(scale, 3, stream(0))


def test_both_sources_add_noise_of_the_scales_asked_for() -> None:
    scales = np.tile([1.0, 5.0], 20_000)
    for source in (SeededNoise(3), ExactNoise()):
        grid = source.grid(3.0)
        values = source.added(scales, grid, "start", 1) * (grid or 1.0) / scales
        for part in (values[::2], values[1::2]):
            assert stats.kstest(part, "norm").pvalue > ALPHA
    assert ExactNoise().grid(3.0) == 2.0 ** (1 - 36)
    assert ExactNoise().grid(4.0) == 2.0 ** (2 - 36)
    assert ExactNoise().added(scales, 2.0**-30).dtype == np.int64
