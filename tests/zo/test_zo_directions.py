"""The direction: on the sphere, isotropic, regenerated, cut into bounded blocks, without global state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles import slices, whole
from torch import nn

from dpzv.errors import ConfigError
from dpzv.zo.directions import BLOCK, SHARED, Direction, layout

Z = 6.0  # standard errors; one correct build in 1e8 would fail a single such comparison


class Bag(nn.Module):
    """Parameters of given shapes, nothing else."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.p = nn.ParameterList([torch.zeros(shape) for shape in shapes])


def flat(module: nn.Module, seed: int) -> torch.Tensor:
    return torch.cat([u.reshape(-1) for u in whole(layout(module), seed)]).double()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 7), max_size=3), min_size=1, max_size=5), st.integers(0, 2**62))
def test_the_norm_is_the_root_of_d(shapes: list[list[int]], seed: int) -> None:
    bag = Bag(*(tuple(shape) for shape in shapes))
    d = sum(math.prod(shape) for shape in shapes)
    assert layout(bag).d == d
    assert float(flat(bag, seed).norm()) == pytest.approx(math.sqrt(d), rel=1e-6)


def test_the_norm_of_a_large_module() -> None:
    bag = Bag((BLOCK + 5,), (700, 1500), (3,), (SHARED,), (SHARED + 1,))
    assert float(flat(bag, 1).norm()) == pytest.approx(math.sqrt(layout(bag).d), rel=1e-6)


def isotropic(us: np.ndarray) -> bool:
    """Whether rows `us` [N, d] look uniform on the sphere of radius sqrt(d).

    Mean 0, second moments the identity (all within Z standard errors), and the squared first coordinate over d
    Beta(1/2, (d-1)/2) distributed (Kolmogorov-Smirnov, p above 1e-8).
    """
    n, d = us.shape
    moment = us.T @ us / n
    off = moment - np.diag(np.diag(moment))
    fits = scipy.stats.kstest(us[:, 0] ** 2 / d, scipy.stats.beta(0.5, (d - 1) / 2).cdf).pvalue > 1e-8
    return bool(
        np.abs(us.mean(0)).max() < Z / math.sqrt(n)
        and np.abs(np.diag(moment) - 1).max() < Z * math.sqrt(2 * (d - 1) / (d + 2) / n)
        and np.abs(off).max() < Z * math.sqrt(d / (d + 2) / n)
        and fits
    )


def test_isotropy_and_that_the_test_can_reject() -> None:
    bag = Bag((2,), ())
    us = np.stack([flat(bag, seed).numpy() for seed in range(4000)])
    assert isotropic(us)
    stretched = us.copy()
    stretched[:, 2] *= 1.15
    assert not isotropic(stretched)
    assert not isotropic(us + 0.12)
    assert not isotropic(np.random.default_rng(0).standard_normal(us.shape))  # a Gaussian is not on the sphere


def test_blocks_of_different_tensors_are_unrelated() -> None:
    bag = Bag((SHARED + 2, 1), (SHARED + 2, 1))
    a, b = (u.reshape(-1).double() for u in whole(layout(bag), 3))
    assert abs(float(a @ b)) / len(a) < Z / math.sqrt(len(a))


def test_the_same_seed_gives_the_same_direction_and_other_seeds_others() -> None:
    bag = Bag((5, 7), (BLOCK + 3,), (2,))
    assert torch.equal(flat(bag, 11), flat(bag, 11))
    assert not torch.equal(flat(bag, 11), flat(bag, 12))
    where = layout(bag)
    forwards = dict(slices(where, 11))
    u = Direction(where, 11)
    for block in reversed(where.blocks):  # any block can be made alone, in any order
        for piece, numbers in zip(block.pieces, u.times(1.0, block), strict=True):
            assert torch.equal(numbers, forwards[piece])


def test_large_blocks_are_drawn_into_one_memory_again_and_again() -> None:
    where = layout(Bag((2 * BLOCK, 3), (4,), (6, 6)))
    u = Direction(where, 5)
    large = [block for block in where.blocks if not block.shared]
    before = [u.times(0.5, block)[0].clone() for block in large]
    assert len({u.times(0.5, block)[0].data_ptr() for block in large}) == 1
    for block, numbers in zip(large, before, strict=True):
        assert torch.equal(u.times(0.5, block)[0], numbers)


def test_pieces_cover_every_number_once_and_are_bounded() -> None:
    bag = Bag((BLOCK // 2 + 1, 3), (4,), (2, BLOCK + 9), (SHARED,), (6, 6), (0,))
    where = layout(bag)
    covered = [torch.zeros(parameter.numel()) for parameter in where.parameters]
    for block in where.blocks:
        assert block.size <= BLOCK
        assert not block.shared or block.size <= SHARED
        for piece in block.pieces:
            covered[piece.parameter][piece.start : piece.stop] += 1
    assert all(bool((count == 1).all()) for count in covered)
    rows = [p for block in where.blocks for p in block.pieces if p.parameter == 0]
    assert len(rows) > 1
    assert all(p.start % 3 == 0 and p.stop % 3 == 0 for p in rows)


def test_tied_and_frozen_parameters() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    net[1].bias.requires_grad_(False)
    where = layout(net)
    assert where.names == ["0.weight", "0.bias", "1.weight", "2.bias"]
    assert where.names == [n for n, p in net.named_parameters() if p.requires_grad]
    assert where.d == 16 + 4 + 16 + 4


def test_what_cannot_be_perturbed_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have trainable parameters"):
        layout(nn.ReLU())
    net = nn.Linear(2, 2)
    net.extra = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ConfigError, match=r"extra .*complex64"):
        layout(net)


def test_no_global_random_state_is_touched() -> None:
    before = torch.random.get_rng_state()
    flat(Bag((100, 3), (SHARED + 1,)), 0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_where_a_direction_is_cut_is_a_format() -> None:
    """Every block has a stream of its own, so another cut would be another direction of the same seed."""
    bag = Bag((300_000,), (65_536,), (40_000,), (30_000,), (3,))
    assert [block.size for block in layout(bag).blocks] == [262_144, 37_856, 65_536, 40_000, 30_003]
