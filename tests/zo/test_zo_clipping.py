"""The clip and the exact sum: neighbours move it by at most the stated sensitivity."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzv.errors import ConfigError
from dpzv.sensitivity import clip_factor
from dpzv.zo.clipping import ClippedSum, clipped_rows, clipped_sum

anything = st.floats(width=64)
batches = st.lists(anything, min_size=1, max_size=30)
bounds = st.floats(1e-6, 1e6)


def doubles(values: list[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


@given(batches, bounds, anything, st.integers(0, 10**6))
def test_replacing_one_record(batch: list[float], C: float, other: float, where: int) -> None:
    i = where % len(batch)
    neighbour = [*batch[:i], other, *batch[i + 1 :]]
    first, second = clipped_sum(doubles(batch), C), clipped_sum(doubles(neighbour), C)
    # exact: no rounding error may add to the sensitivity
    moved = abs(first.total - second.total) * Fraction(first.grid)
    assert moved <= Fraction(clip_factor("replace-one") * C)


@given(batches, bounds, st.integers(0, 10**6))
def test_zeroing_one_record(batch: list[float], C: float, where: int) -> None:
    present = np.ones(len(batch), bool)
    present[where % len(batch)] = False
    first, second = clipped_sum(doubles(batch), C), clipped_sum(doubles(batch), C, present)
    moved = abs(first.total - second.total) * Fraction(first.grid)
    assert moved <= Fraction(clip_factor("zero-out") * C)


@given(bounds)
def test_the_sensitivity_is_reached(C: float) -> None:
    low, high = clipped_sum(doubles([-math.nextafter(math.inf, 0)]), C), clipped_sum(doubles([2 * C]), C)
    assert (high.total - low.total) * Fraction(low.grid) == Fraction(clip_factor("replace-one") * C)


@given(batches, bounds)
def test_the_sum_is_that_of_the_clipped_values(batch: list[float], C: float) -> None:
    expected = sum(Fraction(max(-C, min(C, value))) if math.isfinite(value) else Fraction(0) for value in batch)
    made = clipped_sum(doubles(batch), C)
    assert isinstance(made.total, int)
    assert abs(made.total * Fraction(made.grid) - expected) <= len(batch) * Fraction(made.grid) / 2


@given(st.permutations(list(range(12))))
def test_the_order_of_records_does_not_matter(order: list[int]) -> None:
    values = np.random.default_rng(0).standard_normal(12)
    assert clipped_sum(values[order], 0.7) == clipped_sum(values, 0.7)


def test_the_largest_batch_is_exact_and_a_larger_one_refused() -> None:
    assert clipped_sum(np.full(1 << 20, 9.0), 1.0) == ClippedSum(1 << 60, 2.0**-40)
    with pytest.raises(ConfigError, match=r"at most 1048576 records, got 1048577"):
        clipped_sum(np.zeros((1 << 20) + 1), 1.0)


def test_non_finite_values_count_as_zero() -> None:
    values = doubles([math.nan, math.inf, -math.inf, 0.5])
    assert clipped_sum(values, 1.0).total == 1 << 39
    assert clipped_sum(values, math.inf) == ClippedSum(0.5, 1.0)


def test_without_a_clip_it_is_the_plain_sum() -> None:
    values = doubles([1e9, -3.0, 0.25])
    assert clipped_sum(values, math.inf) == ClippedSum(1e9 - 2.75, 1.0)
    assert clipped_sum(values, math.inf, np.array([False, True, True])) == ClippedSum(-2.75, 1.0)


def test_the_bound_is_two_sided() -> None:
    for value, term in ((-100.0, -2.0), (100.0, 2.0), (1.5, 1.5)):
        made = clipped_sum(doubles([value]), 2.0)
        assert made.total * made.grid == term


@pytest.mark.parametrize("C", [0.0, -1.0, math.nan])
def test_bad_clips_are_refused(C: float) -> None:
    with pytest.raises(ConfigError, match="C must be above 0"):
        clipped_sum(np.zeros(1), C)


vectors = st.integers(1, 8).flatmap(
    lambda k: st.lists(st.lists(st.one_of(anything, st.floats(-2, 2)), min_size=k, max_size=k), min_size=2, max_size=6)
)


@given(vectors, st.one_of(bounds, st.sampled_from([1e-300, 1e300])))
def test_vectors_keep_their_norm_to_the_last_bit(batch: list[list[float]], C: float) -> None:
    """In exact arithmetic: the norm, what replacing a record moves, and that no entry was rounded away from zero."""
    totals, grid = clipped_rows(np.array(batch), C)
    assert totals.dtype == np.int64
    for row, numbers in zip(batch, totals.tolist(), strict=True):
        assert sum(n * n for n in numbers) <= 2**80
        if not all(map(math.isfinite, row)):
            assert not any(numbers)
            continue
        for value, n in zip(row, numbers, strict=True):
            assert abs(n) * Fraction(grid) <= abs(Fraction(value)) * (1 + Fraction(1, 2**50))
    first, second = totals.tolist()[:2]
    assert sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) <= (2 * 2**40) ** 2


@given(st.integers(1, 64), st.integers(0, 10**6), bounds)
def test_clipped_vectors_are_the_scaled_ones(k: int, seed: int, C: float) -> None:
    """Within a step of the grid and the share of 2^-36 that is kept as a reserve; all have their direction."""
    x = np.random.default_rng(seed).standard_normal((5, k)) * C * np.array([[1e-3], [0.3], [1.0], [50.0], [1e9]])
    totals, grid = clipped_rows(x, C)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    expected = x * np.minimum(1, C / np.maximum(norms, 1e-300))
    assert np.abs(totals * grid - expected).max() <= C * (2.0**-40 + 2.0**-36)


@pytest.mark.parametrize("k", [2, 3, 16, 1000, 1 << 16])
def test_long_vectors_reach_the_bound_and_do_not_pass_it(k: int) -> None:
    """At every place on the sphere; scaled to 2^40 itself and rounded to nearest, a third of them would pass it."""
    x = np.random.default_rng(k).standard_normal((200 if k < 9999 else 3, k)) * 1e6
    totals, _ = clipped_rows(x, 0.7)
    squares = [sum(n * n for n in row) for row in totals.tolist()]
    assert max(squares) <= 2**80
    assert min(squares) > 2**80 * (1 - 2**-30)
    nearest = np.rint(x * (2.0**40 / np.linalg.norm(x, axis=1, keepdims=True))).astype(np.int64)
    assert max(sum(n * n for n in row) for row in nearest.tolist()) > 2**80


def test_vectors_of_records_that_may_not_contribute_are_zeros() -> None:
    x = np.ones((3, 2))
    assert clipped_rows(x, math.inf, np.array([True, False, True]))[0].tolist() == [[1, 1], [0, 0], [1, 1]]
    totals, grid = clipped_rows(x, 100.0, np.array([True, False, True]))
    assert (totals * grid).tolist() == pytest.approx(np.array([[1, 1], [0, 0], [1, 1]]))
    with pytest.raises(ConfigError, match="65536 numbers each, got 1 of 65537"):
        clipped_rows(np.zeros((1, (1 << 16) + 1)), 1.0)
