"""The public batch schedule: even participation, no repeats, the same for everybody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv.data.schedule import BatchSchedule, public_order
from dpzv.errors import ConfigError


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    D = draw(st.integers(1, 60))
    return BatchSchedule(seed=draw(st.integers(0, 99)), m=draw(st.integers(1, 9)), B=draw(st.integers(1, D)), D=D)


@given(schedules(), st.integers(0, 200))
def test_no_record_takes_part_more_often_than_stated_and_some_record_does(schedule: BatchSchedule, turns: int) -> None:
    counts = np.zeros(schedule.D, dtype=np.int64)
    for k in range(turns):
        np.add.at(counts, schedule.ids(k), 1)
    assert counts.max() == -(-turns * schedule.B // schedule.D)
    assert counts.max() - counts.min() <= 1


@given(schedules(), st.integers(0, 10**12))
def test_a_batch_holds_B_different_known_records(schedule: BatchSchedule, position: int) -> None:
    ids = schedule.ids(position)
    assert ids.dtype == np.int64
    assert ids.shape == (schedule.B,)
    assert len(np.unique(ids)) == schedule.B
    assert ids.min() >= 0
    assert ids.max() < schedule.D


@given(schedules())
def test_consecutive_batches_walk_the_permutation_cyclically(schedule: BatchSchedule) -> None:
    walked = np.concatenate([schedule.ids(k) for k in range(schedule.D)])
    assert np.array_equal(walked, np.tile(schedule.order, schedule.B))


def test_devices_and_seeds_have_their_own_permutations() -> None:
    orders = [BatchSchedule(seed, m, 5, 1000).order for seed in (0, 1) for m in (1, 2)]
    for i, first in enumerate(orders):
        assert np.array_equal(np.sort(first), np.arange(1000))
        for second in orders[i + 1 :]:
            # two unrelated permutations agree in about one place: Poisson, above 12 with chance below 1e-9
            assert np.count_nonzero(first == second) <= 12


def test_the_order_is_frozen_because_two_organisations_must_agree_on_it() -> None:
    assert public_order(10, 0, "schedule", 1).tolist() == [8, 3, 9, 0, 6, 2, 5, 1, 4, 7]


def test_nobody_can_change_a_batch_or_the_order_that_all_share() -> None:
    schedule = BatchSchedule(3, 1, 4, 10)
    for position in (0, 2):  # batch 2 begins at the end of the order and goes on at its beginning
        with pytest.raises(ValueError, match="read-only"):
            schedule.ids(position)[:] = -1
    with pytest.raises(ValueError, match="read-only"):
        schedule.order[0] = -1


@pytest.mark.parametrize(("B", "D", "words"), [(11, 10, "at most .* 10, got 11"), (0, 10, "at least 1"), (1, 0, "D")])
def test_impossible_sizes_are_refused(B: int, D: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BatchSchedule(0, 1, B, D)


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        BatchSchedule(0, 1, 1, 1).ids(-1)
