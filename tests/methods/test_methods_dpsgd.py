"""The private head: per-record clipping against an oracle, sensitivity, and the statistics of a step."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import stats

from dpzv.errors import ConfigError
from dpzv.methods.dpsgd import DPSGD, clipped_gradient_sum
from dpzv.methods.heads import HeadParts
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import per_record_loss
from dpzv.privacy.head_steps import HeadNoise
from dpzv.privacy.noise import ExactNoise, NoiseSource, SeededNoise
from dpzv.terms import Task

N, K, H = 50, 6, 5


def problem(task: Task, seed: int = 0) -> tuple[Head, torch.Tensor, torch.Tensor]:
    """A head, a table and labels."""
    generator = torch.Generator().manual_seed(seed)
    head = Head(K, H, 3 if task == "classes" else 1, generator)
    rows = 2 * torch.randn(N, K, generator=generator)
    if task == "regression":
        return head, rows, torch.randn(N, generator=generator)
    return head, rows, torch.randint(0, 3 if task == "classes" else 2, (N,), generator=generator)


def one_by_one(head: Head, rows: torch.Tensor, y: torch.Tensor, task: Task, C_0: float) -> list[torch.Tensor]:
    """The oracle: autograd for every record alone, in float64."""
    exact = copy.deepcopy(head).double()
    total = [torch.zeros_like(w) for w in exact.parameters()]
    for i in range(len(y)):
        loss = per_record_loss(task)(exact(rows[i : i + 1].double()), y[i : i + 1]).sum()
        gradients = torch.autograd.grad(loss, list(exact.parameters()))
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        for sum_, g in zip(total, gradients, strict=True):
            sum_ += g * min(1.0, C_0 / float(norm))
    return total


@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
@pytest.mark.parametrize("C_0", [0.05, 1.0, 100.0])
def test_the_trick_equals_one_gradient_per_record(task: Task, C_0: float) -> None:
    head, rows, y = problem(task)
    found = clipped_gradient_sum(head, rows, y, per_record_loss(task), C_0)
    for a, b in zip(found, one_by_one(head, rows, y, task, C_0), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def norm_of(parts: list[torch.Tensor]) -> float:
    return float(torch.sqrt(sum((p.square().sum() for p in parts), torch.zeros(()))))


def test_one_record_moves_the_sum_by_at_most_its_clip_and_reaches_it() -> None:
    head, rows, y = problem("classes")
    loss, C_0 = per_record_loss("classes"), 0.01
    whole = clipped_gradient_sum(head, rows, y, loss, C_0)
    moves = []
    for i in range(N):
        keep = torch.arange(N) != i
        without = clipped_gradient_sum(head, rows[keep], y[keep], loss, C_0)
        moves.append(norm_of([a - b for a, b in zip(whole, without, strict=True)]))
    assert max(moves) <= C_0 * (1 + 1e-9)
    assert max(moves) > 0.99 * C_0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_gradient_that_is_not_finite_counts_as_zero(value: float) -> None:
    head, rows, y = problem("classes")
    loss = per_record_loss("classes")
    broken = rows.double()
    broken[7] = value
    keep = torch.arange(N) != 7
    expected = clipped_gradient_sum(head, rows[keep], y[keep], loss, 0.5)
    for a, b in zip(clipped_gradient_sum(head, broken, y, loss, 0.5), expected, strict=True):
        assert a.isfinite().all()
        assert norm_of([a - b]) <= 0.5 * (1 + 1e-9)
    if not np.isfinite(value):
        exact = copy.deepcopy(head).double()
        gradients = torch.autograd.grad(loss(exact(broken[7:8]), y[7:8]).sum(), list(exact.parameters()))
        assert not np.isfinite(norm_of(list(gradients)))


def test_an_empty_batch_is_a_step_of_noise_only() -> None:
    head, rows, y = problem("binary")
    assert norm_of(clipped_gradient_sum(head, rows[:0], y[:0], per_record_loss("binary"), 1.0)) == 0


def private_head(
    head: Head, rows: torch.Tensor, y: torch.Tensor, source: NoiseSource, *, batch: int, z: float, C_0: float
) -> DPSGD:
    """A private head for binary labels with steps of size 1."""
    noise = HeadNoise(source, D=len(y), batch=batch, z=z, C_0=C_0)
    steps, loss = Steps(1.0, 0.0, "constant", 1), per_record_loss("binary")
    return DPSGD(HeadParts(head=head, loss=loss, steps=steps, seed=0, lam=1.0, table=rows, y=y, noise=noise))


def moved(z: float, C_0: float, batch: int, seed: int) -> torch.Tensor:
    """How far one step with eta 1 moves all weights of a head whose records are never sampled in effect."""
    head, rows, y = problem("binary")
    before = torch.cat([w.detach().flatten().double() for w in head.parameters()])
    rule = private_head(head, torch.zeros_like(rows), y, SeededNoise(seed), batch=batch, z=z, C_0=C_0)
    rule.move(1, np.zeros(1), rows[:0], y[:0], 1)
    return torch.cat([w.detach().flatten().double() for w in head.parameters()]) - before


def test_the_noise_of_a_step_is_z_times_the_clip_over_the_public_batch() -> None:
    """A chi-square test at 1e-6 that accepts z and rejects 0.8 z and 1.25 z."""
    z, C_0, batch = 40.0, 1e-3, 10
    steps = torch.cat([moved(z, C_0, batch, seed) for seed in range(60)])
    square = float((steps / (z * C_0 / batch)).square().sum())
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(steps))
    # records add at most C_0 each, a fortieth of the noise, to each step's whole vector
    assert low < square < high * 1.02
    for factor in (0.8, 1.25):
        assert not low < square / factor**2 < high * 1.02


def test_the_divisor_is_the_public_batch_whatever_was_sampled() -> None:
    """Without noise the mean step over many draws is the clipped mean gradient: E[sampled sum] = q * sum."""
    head, rows, y = problem("binary")
    loss, C_0, batch = per_record_loss("binary"), 0.3, 20
    total = clipped_gradient_sum(head, rows, y, loss, C_0)
    means = [torch.zeros_like(part) for part in total]
    draws = 400
    for draw in range(draws):
        trial = copy.deepcopy(head).double()
        rule = private_head(trial, rows, y, SeededNoise(draw), batch=batch, z=0.0, C_0=C_0)
        rule.move(1, np.zeros(1), rows[:0], y[:0], 1)
        for mean, new, old in zip(means, trial.parameters(), head.parameters(), strict=True):
            mean += (old.detach().double() - new.detach()) / draws
    expected = [part / N for part in total]
    # a record's share has standard deviation at most C_0/batch * sqrt(q(1-q)); four standard errors over all records
    bound = 4 * C_0 / batch * (N * 0.4 * 0.6 / draws) ** 0.5
    assert norm_of([a - b for a, b in zip(means, expected, strict=True)]) < bound
    assert norm_of(expected) > 3 * bound / 4


# --- sums and noise on a grid ---------------------------------------------------------------------


def test_with_secret_noise_a_step_is_integers_of_the_grid() -> None:
    head, rows, y = problem("binary")
    trial = copy.deepcopy(head).double()
    for w in trial.parameters():
        w.data.zero_()
    rule = private_head(trial, rows, y, ExactNoise(), batch=32, z=2.0, C_0=0.3)
    rule.move(1, np.zeros(1), rows[:0], y[:0], 1)
    grid = ExactNoise().grid(0.3) / 32  # eta is 1 and the divisor a power of 2, so that nothing is rounded
    steps = np.concatenate([w.detach().numpy().ravel() for w in trial.parameters()]) / grid
    assert np.array_equal(steps, np.rint(steps))
    assert np.gcd.reduce(steps.astype(np.int64)) == 1
    assert np.abs(steps).max() > 2**30


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_a_record_is_computed_the_same_whichever_others_are_drawn(accelerator: str) -> None:
    """All records are where the gradient jumps. BLAS treats the last rows of a batch of 7 and of 8 differently."""
    if accelerator == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    generator = torch.Generator().manual_seed(0)
    head, rows = Head(28, 64, 1, generator).double(), torch.randn(1, 28, generator=generator).double().repeat(N, 1)
    head, rows = head.to(accelerator), rows.to(accelerator)
    with torch.no_grad():
        head.hidden.bias.zero_()
        head.hidden.bias.copy_(-head.hidden(rows)[0])
    y, C_0 = torch.zeros(N, dtype=torch.long, device=accelerator), 1e-3
    rule = private_head(head, rows, y, ExactNoise(), batch=20, z=2.0, C_0=C_0)
    sums = {n: rule._sums(np.arange(n)) for n in range(40)}
    grid = ExactNoise().grid(C_0)
    for n in range(39):
        move = norm_of([(a - b).double() * grid for a, b in zip(sums[n + 1], sums[n], strict=True)])
        assert move <= C_0 * (1 + 1e-6), n


def test_rounding_errors_do_not_grow_with_the_number_of_records() -> None:
    """A record moves the sum of its own range of ids and no other, to the last bit."""
    D, C_0 = 20_000, 0.5
    head, _, _ = problem("binary")
    generator = torch.Generator().manual_seed(1)
    rows, y = torch.randn(D, K, generator=generator), torch.randint(0, 2, (D,), generator=generator)
    rule = private_head(head, rows, y, ExactNoise(), batch=D, z=2.0, C_0=C_0)
    whole, ranges = rule._sums(np.arange(D)), [np.arange(a, min(a + 8192, D)) for a in range(0, D, 8192)]
    parts = [rule._sums(ids) for ids in ranges]
    for i, one in enumerate(whole):
        assert torch.equal(one, sum((part[i] for part in parts), torch.zeros_like(one)))
    rule._table[3], rule._y[3] = 100.0, 1 - y[3]
    moved = rule._sums(np.arange(D))
    assert 0 < norm_of([(a - b).double() for a, b in zip(moved, whole, strict=True)]) * rule._noise.grid <= 2 * C_0
    for i, one in enumerate(moved):
        assert torch.equal(one - whole[i], rule._sums(ranges[0])[i] - parts[0][i])
    exact = clipped_gradient_sum(head, rule._table, rule._y, per_record_loss("binary"), C_0)
    for a, b in zip(moved, exact, strict=True):
        assert torch.allclose(a.double() * rule._noise.grid, b, rtol=1e-6, atol=1e-6)


def test_sizes_that_the_grid_cannot_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 16,777,216 records, got 16,777,217"):
        HeadNoise(ExactNoise(), D=2**24 + 1, batch=10, z=1.0, C_0=1.0)
    HeadNoise(SeededNoise(0), D=2**24 + 1, batch=10, z=1.0, C_0=1.0)


def test_steps_fall_as_their_schedule_says() -> None:
    assert [Steps(2.0, 0.0, "constant", 4).at(t) for t in (0, 1, 4)] == [2.0, 2.0, 2.0]
    assert [Steps(2.0, 0.0, "linear", 4).at(t) for t in (0, 1, 3, 4)] == [2.0, 2.0, 1.0, 0.5]
    assert Steps(2.0, 0.0, "cosine", 4).at(3) == pytest.approx(1.0)
