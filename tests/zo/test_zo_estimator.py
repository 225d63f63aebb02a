"""E[delta_zo * u] is the gradient: on a quadratic and on a small network, within a stated confidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.oracles import direction, whole
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.zo.directions import layout
from dpzv.zo.estimator import delta_zo
from dpzv.zo.perturb import two_point

N = 2500  # directions
Z = 5.0  # standard errors: a correct build fails one comparison in about two million


class Quadratic(nn.Module):
    """f(w) = 1/2 w'Aw + b'w in every record."""

    def __init__(self, d: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(d, d, generator=generator, dtype=torch.float64)
        self.register_buffer("A", a @ a.T / d)
        self.register_buffer("b", torch.randn(d, generator=generator, dtype=torch.float64))
        self.w = nn.Parameter(torch.randn(d, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w @ self.A @ self.w / 2 + self.b @ self.w).expand(len(x), 1)


class Loss(nn.Module):
    """A small network with its per-record loss, float64."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in self.net.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return torch.log1p(torch.exp(-self.net(x)))


def samples(module: nn.Module, x: Tensor, lam: float) -> np.ndarray:
    """[N, d]: delta_zo * u of record 0, over N directions."""
    out = []
    for seed in range(N):
        f_plus, f_minus = two_point(module, x, direction(module, seed), lam)
        u = torch.cat([v.reshape(-1) for v in whole(layout(module), seed)])
        out.append(delta_zo(f_plus[:, 0], f_minus[:, 0], lam)[0] * u.numpy())
    return np.stack(out)


def agrees(found: np.ndarray, gradient: np.ndarray) -> bool:
    """Whether the mean of the samples is the gradient within Z standard errors, in each coordinate and along it."""
    n = len(found)
    coordinates = np.abs(found.mean(0) - gradient) < Z * found.std(0) / math.sqrt(n)
    along = found @ gradient / (gradient @ gradient)
    return bool(coordinates.all() and abs(along.mean() - 1) < Z * along.std() / math.sqrt(n))


@pytest.mark.parametrize("kind", ["quadratic", "network"])
def test_the_mean_is_the_gradient(kind: str) -> None:
    module = Quadratic(6) if kind == "quadratic" else Loss()
    x = torch.tensor([[0.3, -1.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    gradients = torch.autograd.grad(module(x)[0, 0], list(module.parameters()))
    gradient = torch.cat([g.reshape(-1) for g in gradients]).numpy()
    found = samples(module, x, 1e-4)
    assert agrees(found, gradient)
    assert not agrees(0.8 * found, gradient)
    assert not agrees(1.25 * found, gradient)
    assert not agrees(2 * found, gradient)  # dividing by lam instead of 2*lam


def test_the_difference_is_exact_on_a_line() -> None:
    lam = 0.25
    slope = torch.tensor([2.0, -3.0, 0.0])
    result = delta_zo(1 + lam * slope, 1 - lam * slope, lam)
    assert result.dtype == np.float64
    assert result.tolist() == [2.0, -3.0, 0.0]


def test_non_finite_losses_stay_in_their_record() -> None:
    f = torch.tensor([1.0, float("inf"), float("nan")])
    assert delta_zo(f, torch.ones(3), 0.5)[0] == 0
    assert not np.isfinite(delta_zo(f, torch.ones(3), 0.5)[1:]).any()


def test_lam_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="lam must be above 0"):
        delta_zo(torch.ones(1), torch.ones(1), 0.0)
