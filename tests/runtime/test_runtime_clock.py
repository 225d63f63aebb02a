"""The virtual clock: order, participation and restoring."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dpzv import config as configuration
from dpzv.errors import ConfigError
from dpzv.runtime.clock import Speed, VirtualClock, speeds_of


def run(clock: VirtualClock, rounds: int, positions: list[int]) -> list[int]:
    """Who arrives in the next `rounds`, each answered at once."""
    order = []
    for _ in range(rounds):
        m = clock.next().m
        positions[m - 1] += 1
        clock.answered(m, positions[m - 1])
        order.append(m)
    return order


def test_equal_speeds_are_round_robin() -> None:
    speeds = (Speed(0.013, False, 1e6, 0.002),) * 3
    assert run(VirtualClock(speeds, (1000,) * 3, (1000,) * 3, 0), 300, [0] * 3) == [1, 2, 3] * 100


def test_fixed_speeds_give_participation_in_proportion() -> None:
    speeds = (Speed(1.0, False, 1e9, 0.0), Speed(4.0, False, 1e9, 0.0))
    order = run(VirtualClock(speeds, (8, 8), (8, 8), 0), 1000, [0, 0])
    assert abs(order.count(1) - 800) <= 1


def test_latency_and_bandwidth_are_charged() -> None:
    clock = VirtualClock((Speed(1.0, False, 100.0, 0.25),), (50,), (8,), 0)
    assert clock.next().seconds == pytest.approx(1.0 + 0.25 + 50 / 100)
    clock.answered(1, 1)
    assert clock.next().seconds == pytest.approx(2 * (1.0 + 0.25 + 0.5) + 0.25 + 8 / 100)


def test_exponential_participation_is_independent_with_q_m_in_proportion_to_speed() -> None:
    """Rates 3:1: 3/4 of the arrivals are device 1's, and whether it comes next does not depend on the last."""
    speeds = (Speed(1.0, True, 1e12, 0.0), Speed(3.0, True, 1e12, 0.0))
    order = run(VirtualClock(speeds, (8, 8), (8, 8), 5), 20_000, [0, 0])
    q = order.count(1) / len(order)
    bound = 4 * (0.75 * 0.25 / 20_000) ** 0.5  # four standard errors: fails once in 16,000 seeds
    assert abs(q - 0.75) < bound
    after_one = [b for a, b in pairwise(order) if a == 1]
    assert abs(after_one.count(1) / len(after_one) - 0.75) < bound * (4 / 3) ** 0.5


def test_restore_continues_the_same_order() -> None:
    speeds = (Speed(1.0, True, 1e6, 0.1), Speed(0.7, True, 1e6, 0.0), Speed(0.9, False, 1e6, 0.0))
    clock, positions = VirtualClock(speeds, (10,) * 3, (10,) * 3, 9), [0] * 3
    run(clock, 57, positions)
    state, at = clock.state(), list(positions)
    expected = run(clock, 50, positions)
    other = VirtualClock(speeds, (10,) * 3, (10,) * 3, 9)
    other.restore(state)
    assert run(other, 50, at) == expected


@pytest.mark.parametrize(
    "value",
    [
        "exponential",
        "exponential -1",
        "normal 0.1",
        *(f"exponential {word}" for word in ("x", "nan", "inf")),
        -1.0,
        0.0,
    ],
)
def test_bad_compute_is_refused(value: float | str) -> None:
    config = configuration.parse({"devices": {"compute": value}, "train": {"rounds": 1}})
    with pytest.raises(ConfigError, match=r"devices\.compute"):
        speeds_of(config, 2)
