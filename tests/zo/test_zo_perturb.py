"""Evaluation beside the weights: equal to a perturbed copy, for all kinds of modules; weights untouched."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.oracles import direction, whole
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dpzv.errors import ConfigError
from dpzv.zo.directions import BLOCK, layout
from dpzv.zo.perturb import momentum_step, perturbed, step, two_point

SEED, LAM = 7, 1e-2


class Attention(nn.Module):
    """Reads its child's weights without calling it (inside nn.MultiheadAttention)."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x, x, x)[0].mean(1)


class Lists(nn.Module):
    """Parameters in containers, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.ParameterList([torch.randn(4, 4) for _ in range(3)])
        self.q = nn.ParameterDict({"a": torch.randn(4)})
        self.s = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        for p in self.p:
            x = (x @ p).tanh()
        return self.s * x + self.q["a"]


class Tied(nn.Module):
    """An embedding whose table is also the output layer, used as a module and by its parent."""

    def __init__(self, rows: int = 10, width: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.out = nn.Linear(width, rows)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x).sum(1)
        return self.out(h) + h @ self.table.weight.T


class Twice(nn.Module):
    """One layer called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x).tanh()
        return x


class Recurrent(nn.Module):
    """Keeps its parameters in a list of its own (inside nn.LSTM)."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.r(x)[0][:, -1]


class Constant(nn.Module):
    """Returns a parameter as it is, after asking for its shape and type."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        assert (self.h.shape, self.h.dtype, self.h.ndim, self.h.numel()) == ((3, 2), torch.float32, 2, 6)
        assert isinstance(self.h, nn.Parameter)
        return self.h


def floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape, generator=torch.Generator().manual_seed(1))


def ids(rows: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(rows, shape, generator=torch.Generator().manual_seed(1))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)), floats(5, 4)),
    "norms": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.LayerNorm(4), nn.PReLU(4)), floats(5, 4)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(3, 3), nn.Flatten()), floats(5, 1, 6, 6)),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).to(memory_format=torch.channels_last),
        floats(5, 3, 6, 6),
    ),
    "transposed conv": (lambda: nn.ConvTranspose1d(2, 3, 3), floats(5, 2, 9)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Flatten()), ids(10, 5, 3)),
    "embedding bag": (lambda: nn.EmbeddingBag(10, 4), ids(10, 5, 3)),
    "lstm": (Recurrent, floats(5, 6, 4)),
    "lstm cell": (lambda: nn.GRUCell(4, 3), floats(5, 4)),
    "attention": (Attention, floats(5, 6, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), floats(5, 6, 8)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), floats(5, 4)),
    "lists": (Lists, floats(5, 4)),
    "tied": (Tied, ids(10, 5, 3)),
    "called three times": (Twice, floats(5, 4)),
    "parameter returned": (Constant, floats(3, 1)),
    "double": (lambda: nn.Linear(4, 3).double(), lambda: floats(5, 4)().double()),
    "bfloat16": (lambda: nn.Linear(4, 3).bfloat16(), lambda: floats(5, 4)().bfloat16()),
    "one block": (lambda: nn.Linear(300, 400), floats(5, 300)),
    "large linear in blocks": (lambda: nn.Linear(1100, 1000), floats(5, 2, 1100)),
    "large linear, no bias": (lambda: nn.Linear(1100, 1000, bias=False), floats(5, 1100)),
    "large bfloat16": (lambda: nn.Linear(1100, 1000).bfloat16(), lambda: floats(5, 1100)().bfloat16()),
    "large double": (lambda: nn.Linear(1100, 1000).double(), lambda: floats(5, 1100)().double()),
    "large embedding in blocks": (lambda: nn.Embedding(20_000, 64), ids(20_000, 50, 4)),
    "large embedding, bounded rows": (lambda: nn.Embedding(20_000, 64, max_norm=0.5), ids(20_000, 50, 4)),
    "large and tied": (lambda: Tied(20_000, 64), ids(20_000, 5, 4)),
    "large conv": (lambda: nn.Sequential(nn.Conv2d(120, 1000, 3), nn.Flatten()), floats(2, 120, 3, 3)),
    "long rows": (lambda: nn.Linear(BLOCK + 7, 2), floats(3, BLOCK + 7)),
    "several large layers": (
        lambda: nn.Sequential(*(nn.Linear(1100, 1100) for _ in range(3))), floats(3, 1100),
    ),
}  # fmt: skip


def case(name: str) -> tuple[nn.Module, Tensor]:
    """The module with deterministic weights, in evaluation mode, and an input."""
    module = CASES[name][0]().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 4
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan**0.5)
    return module, CASES[name][1]()


def moved(module: nn.Module, offset: float) -> nn.Module:
    """A copy of the module at `w + offset*u`, the plain way."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for w, u in zip(layout(other).parameters, whole(layout(other), SEED), strict=True):
            w.copy_(w + offset * u)
    return other


def bits(module: nn.Module) -> list[bytes]:
    return [p.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for p in module.parameters()]


@pytest.mark.parametrize("name", CASES)
def test_two_point_equals_a_perturbed_copy_and_leaves_the_weights(name: str) -> None:
    module, x = case(name)
    before, objects = bits(module), [(id(p), p.data_ptr()) for p in module.parameters()]
    h_plus, h_minus = two_point(module, x, direction(module, SEED), LAM)
    assert bits(module) == before
    assert [(id(p), p.data_ptr()) for p in module.parameters()] == objects
    assert type(h_plus) is Tensor
    assert not h_plus.requires_grad
    with torch.no_grad():
        expected = moved(module, LAM)(x), moved(module, -LAM)(x)
        middle = module(x)
    tolerance = 2e-2 if h_plus.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(h_plus, expected[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(h_minus, expected[1], rtol=tolerance, atol=tolerance)
    if h_plus.dtype != torch.bfloat16:  # the comparison means something: the perturbation is well above it
        assert (h_plus - middle).abs().max() > 100 * (h_plus - expected[0]).abs().max()
        assert not torch.equal(h_plus, h_minus)


@pytest.mark.parametrize("name", ["mlp", "conv", "tied", "large embedding in blocks", "double"])
def test_two_point_is_bit_equal_to_a_perturbed_copy(name: str) -> None:
    module, x = case(name)
    h_plus, h_minus = two_point(module, x, direction(module, SEED), LAM)
    with torch.no_grad():
        assert torch.equal(h_plus, moved(module, LAM)(x))
        assert torch.equal(h_minus, moved(module, -LAM)(x))


def test_perturbed_block_is_the_same_evaluation() -> None:
    module, x = case("mlp")
    h_plus, h_minus = two_point(module, x, direction(module, SEED), LAM)
    with perturbed(direction(module, SEED), LAM):
        assert torch.equal(module(x), h_plus)
    with perturbed(direction(module, SEED), -LAM):
        assert torch.equal(module(x), h_minus)


def test_weights_are_restored_when_the_forward_raises() -> None:
    module, _ = case("lstm")
    before, objects = bits(module), [id(p) for p in module.parameters()]
    with pytest.raises(RuntimeError):
        two_point(module, torch.zeros(2, 2, 99), direction(module, SEED), LAM)
    assert bits(module) == before
    assert [id(p) for p in module.parameters()] == objects
    assert [id(p) for p in module.r._flat_weights] == objects
    module(torch.zeros(2, 2, 4)).sum().backward()  # and it can still be trained by gradients


class Recording(nn.Module):
    """Switches gradients on in its forward, as modules do that save memory by computing twice."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 1100), nn.Linear(1100, 300)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.large(self.small(x))


def test_a_forward_that_switches_gradients_on_records_nothing() -> None:
    net = Recording()
    for h in two_point(net, torch.ones(2, 4), direction(net, SEED), LAM):
        assert not h.requires_grad


class Unused(nn.Module):
    """Has a trainable layer its forward leaves out, though it looks at its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        assert self.idle.weight.shape == (2, 3)
        return self.used(x)


def test_unused_parameters_are_refused_by_name() -> None:
    net = Unused()
    with pytest.raises(ConfigError, match=r"idle\.weight, idle\.bias"):
        two_point(net, torch.zeros(1, 3), direction(net, SEED), LAM)
    net.idle.requires_grad_(False)
    two_point(net, torch.zeros(1, 3), direction(net, SEED), LAM)


def test_code_that_would_read_past_the_stand_in_fails_loudly() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch call it deprecated
        scripted = torch.jit.script(nn.Linear(3, 2))
    net = nn.Sequential(scripted, nn.Linear(2, 2))
    with pytest.raises((ConfigError, RuntimeError)):
        two_point(net, torch.zeros(1, 3), direction(net, SEED), LAM)
    assert net(torch.zeros(1, 3)).shape == (1, 2)


def test_a_module_must_return_one_tensor() -> None:
    lstm = nn.LSTM(2, 2)
    with pytest.raises(ConfigError, match="must return one tensor, got tuple"):
        two_point(lstm, torch.zeros(1, 1, 2), direction(lstm, SEED), LAM)


@pytest.mark.parametrize("name", ["mlp", "channels last", "tied", "large and tied", "double", "long rows"])
def test_step_moves_along_the_same_direction(name: str) -> None:
    module, _ = case(name)
    expected = moved(module, -0.3)
    step(direction(module, SEED), 0.3)
    for w, other in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(w, other, rtol=1e-6, atol=1e-7)  # product and sum may be rounded at once


def test_step_on_a_large_tensor_that_is_not_contiguous() -> None:
    module = nn.Linear(1100, 1000)
    module.weight = nn.Parameter(module.weight.detach().T.contiguous().T)
    assert not module.weight.is_contiguous()
    expected = moved(module, -0.3)
    step(direction(module, SEED), 0.3)
    assert torch.equal(module.weight, expected.weight)


def test_a_step_by_zero_leaves_every_bit() -> None:
    module, _ = case("mlp")
    with torch.no_grad():
        module[0].bias[:4] = torch.tensor([-0.0, float("nan"), float("inf"), 1e-45])
    before = bits(module)
    step(direction(module, SEED), 0.0)
    step(direction(module, SEED), -0.0)
    assert bits(module) == before
    with torch.no_grad():  # the reason for the special case: plain arithmetic turns some -0.0 into 0.0
        zeros = torch.full((1000,), -0.0)
        u = torch.randn(1000, generator=torch.Generator().manual_seed(0))
        assert not torch.equal((zeros - 0.0 * u).signbit(), zeros.signbit())


def test_perturbing_in_place_and_back_does_not_leave_the_weights() -> None:
    """Why evaluation goes beside the weights: +1, -2, +1 in place drifts."""
    module, x = case("mlp")
    before = bits(module)
    two_point(module, x, direction(module, SEED), LAM)
    assert bits(module) == before
    w = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    u = torch.cat([v.reshape(-1) for v in whole(layout(module), SEED)])
    back = w.clone().add_(u, alpha=LAM).add_(u, alpha=-2 * LAM).add_(u, alpha=LAM)
    assert (back != w).float().mean() > 0.2


def test_momentum_against_the_written_rule() -> None:
    module, _ = case("mlp")
    other = copy.deepcopy(module)
    velocity = [torch.zeros_like(p) for p in module.parameters()]
    v = [torch.zeros_like(p) for p in other.parameters()]
    for seed, Delta in enumerate([0.5, -2.0, 0.0]):
        momentum_step(velocity, direction(module, seed), Delta, eta=0.1, momentum=0.9)
        with torch.no_grad():
            for k, (w, u) in enumerate(zip(other.parameters(), whole(layout(other), seed), strict=True)):
                v[k] = 0.9 * v[k] + Delta * u
                w -= 0.1 * v[k]
    for a, b in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert all(torch.equal(a, b) for a, b in zip(velocity, v, strict=True))


def test_bad_coefficients_and_velocities_are_refused() -> None:
    module, _ = case("mlp")
    with pytest.raises(ConfigError, match="must be finite, got nan"):
        step(direction(module, SEED), float("nan"))
    with pytest.raises(ConfigError, match="must be finite, got inf"):
        momentum_step(
            [torch.zeros_like(p) for p in module.parameters()], direction(module, 0), float("inf"), eta=1, momentum=0
        )
    with pytest.raises(ConfigError, match="velocity must have the shapes"):
        momentum_step([], direction(module, 0), 1.0, eta=1, momentum=0)


def test_every_route_a_parameter_takes_sees_perturbed_values() -> None:
    """Whatever route a parameter takes, both evaluations differ by the same shift."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            stacked = torch.stack([self.w, 2 * self.w])
            return x * stacked.sum(0) + F.pad(self.w.data, (0, 0)) + self.w[None].expand(len(x), 3)

    odd = Odd()
    h_plus, h_minus = two_point(odd, torch.ones(2, 3), direction(odd, SEED), LAM)
    u = whole(layout(Odd()), SEED)[0]
    torch.testing.assert_close(h_plus - h_minus, (2 * LAM * 5 * u).expand(2, 3))
