"""Device networks: shapes, explicit starts, the row rule, and embeddings of a usable size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from dense_networks import linear, mlp
from tests.oracles import direction
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models.gabor import GaborBank, GaborCNN, GaborPatchCNN
from dpzv.models.head import Head
from dpzv.models.images import PatchCNN, StripCNN
from dpzv.models.layers import orthogonal
from dpzv.models.rowwise import require_rowwise
from dpzv.zo.perturb import step, two_point


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def strips(n: int, seed: int = 0) -> Tensor:
    """Bytes [n, 112]: smooth bright blobs on black, some strips empty."""
    noise = torch.rand(n, 1, 4, 28, generator=generator(seed))
    blobs = F.avg_pool2d(noise, 3, stride=1, padding=1).sub(0.4).clamp_min(0)
    blobs[::5] = 0
    return (blobs / 0.3).clamp_max(1).mul(255).byte().flatten(1)


def patches(n: int, seed: int = 0) -> Tensor:
    """Bytes [n, 768]: smooth coloured fields with the means and contrasts of photographs, which differ a lot."""
    g = generator(seed)
    z = F.interpolate(torch.randn(n, 3, 4, 4, generator=g), size=16, mode="bilinear")
    grey = z.mean(1, keepdim=True) + torch.randn(n, 1, 1, 1, generator=g)
    z = grey + 0.2 * z + 0.2 * torch.randn(n, 3, 16, 16, generator=g)
    contrast = torch.rand(n, 1, 1, 1, generator=g) * 0.3 + 0.05
    return (0.47 + contrast * z).clamp(0, 1).mul(255).byte().flatten(1)


def rows(n: int) -> Tensor:
    return torch.randn(n, 12, generator=generator(0))


SHIPPED: dict[str, tuple[Callable[[torch.Generator], nn.Module], Callable[[int], Tensor], int]] = {
    "linear": (lambda g: linear(12, 5, g), rows, 5),
    "columns narrow": (lambda g: linear(12, 5, g, "columns"), rows, 5),
    "mlp": (lambda g: mlp(12, 20, 5, g), rows, 5),
    "cnn": (lambda g: StripCNN(4, 28, 16, g), strips, 16),
    "cnn wide": (lambda g: StripCNN(4, 28, 128, g), strips, 128),
    "gabor": (lambda g: GaborCNN(4, 28, 16, g), strips, 16),
    "gabor 63": (lambda g: GaborCNN(4, 28, 63, g), strips, 63),
    "gabor 64": (lambda g: GaborCNN(4, 28, 64, g), strips, 64),
    "gabor 126": (lambda g: GaborCNN(4, 28, 126, g), strips, 126),
    "cnn4": (lambda g: PatchCNN(3, 16, 64, g), patches, 64),
    "gabor patch": (lambda g: GaborPatchCNN(3, 16, 64, g), patches, 64),
    "gabor patch 108": (lambda g: GaborPatchCNN(3, 16, 108, g), patches, 108),
    "head": (lambda g: Head(12, 9, 10, g), rows, 10),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_row_rule(name: str) -> None:
    """Replacing one row leaves all other rows' outputs bit-equal, also of both perturbed evaluations."""
    build, data, width = SHIPPED[name]
    network, x = build(generator(1)), data(33)
    assert require_rowwise(network, x[:8], name=name) == width
    for row in (0, 7, 32):
        replaced = x.clone()
        replaced[row] = 200 if x.dtype == torch.uint8 else 1e6
        others = torch.arange(33) != row
        before, after = (
            two_point(network, x, direction(network, 3), 1e-2),
            two_point(network, replaced, direction(network, 3), 1e-2),
        )
        for a, b in zip(before, after, strict=True):
            assert torch.equal(a[others], b[others])
            assert not torch.equal(a[row], b[row])


@pytest.mark.parametrize("name", SHIPPED)
def test_a_start_depends_on_its_generator_alone(name: str) -> None:
    build, data, _ = SHIPPED[name]
    state = torch.random.get_rng_state()
    one, two, other = build(generator(1)), build(generator(1)), build(generator(2))
    assert torch.equal(state, torch.random.get_rng_state())
    x = data(4)
    assert torch.equal(one(x), two(x))
    if name not in {"gabor 63", "gabor 126", "gabor patch 108"}:  # these start as the identity
        assert not torch.equal(one(x), other(x))


@pytest.mark.parametrize("name", SHIPPED)
def test_embeddings_start_with_a_deviation_near_one(name: str) -> None:
    build, data, _ = SHIPPED[name]
    with torch.no_grad():
        deviation = build(generator(1))(data(400)).std(0).mean()
    assert 0.3 < deviation < 3


@pytest.mark.parametrize("network", [StripCNN, GaborCNN])
def test_strips_come_flat_or_as_images_in_bytes_or_floats(network: type[nn.Module]) -> None:
    cnn, x = network(4, 28, 8, generator(0)), strips(6)
    h = cnn(x)
    assert h.shape == (6, 8)
    assert torch.equal(cnn(x.view(6, 1, 4, 28)), h)
    assert torch.equal(cnn(x.float() / 255), h)
    with pytest.raises(ConfigError, match="images of 1x4x28 pixels"):
        cnn(x[:, :100])


def test_the_cnn_against_torchs_own_layers() -> None:
    cnn, x = StripCNN(5, 30, 8, generator(0)), torch.rand(6, 150, generator=generator(1))
    plain = nn.Sequential(
        cnn.conv1, nn.ReLU(), nn.MaxPool2d(2), cnn.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), cnn.out
    )
    torch.testing.assert_close(cnn(x), plain(x.view(6, 1, 5, 30)))
    with pytest.raises(ConfigError, match="at least 4x4 pixels, got 3x28"):
        StripCNN(3, 28, 8, generator(0))


def test_orthogonal_rows_or_columns() -> None:
    for outputs, inputs in ((5, 9), (9, 5), (6, 6)):
        q = orthogonal(outputs, inputs, generator(0))
        assert q.shape == (outputs, inputs)
        gram = q @ q.T if outputs <= inputs else q.T @ q
        torch.testing.assert_close(gram, torch.eye(min(outputs, inputs)), atol=1e-5, rtol=0)


def test_gabor_pairs_see_their_own_orientation_at_any_phase() -> None:
    filters = GaborBank(4, 28, 7).filters
    assert filters.shape == (17, 1, 5, 5)
    assert filters[:16].sum((1, 2, 3)).abs().max() < 1e-6  # blind to brightness
    columns = torch.arange(28.0).expand(8, 28)
    moduli = []
    for phase in torch.linspace(0, 3, 7):
        z = F.conv2d(torch.cos(2 * torch.pi / 4 * columns + phase)[None, None], filters)
        moduli.append(torch.hypot(z[0, :8], z[0, 8:16]).mean((1, 2)))
    response = torch.stack(moduli)
    assert (response.argmax(1) == 0).all()  # a vertical grating: orientation 0, whatever its phase
    assert response[:, 0].std() < 0.05 * response[:, 0].mean()
    assert (response[:, 4] < 0.2 * response[:, 0]).all()


def test_the_gabor_bank_scales_each_record_and_keeps_empty_strips_empty() -> None:
    bank, x = GaborBank(4, 28, 7), strips(20)
    h = bank(x)
    assert h.shape == (20, 63)
    assert (h[::5] == 0).all()
    norms = h[1::5].norm(dim=1) / 63**0.5
    assert ((norms > 0.5) & (norms < 1)).all()
    with pytest.raises(ConfigError, match="divide 28 columns, got 9"):
        GaborBank(4, 28, 9)


def test_training_gabor_moves_the_linear_map_only() -> None:
    cnn = GaborCNN(4, 28, 8, generator(0))
    filters, weight = cnn.bank.filters.clone(), cnn.out.weight.detach().clone()
    step(direction(cnn, 0), 0.1)
    assert torch.equal(cnn.bank.filters, filters)
    assert not torch.equal(cnn.out.weight, weight)
    assert set(cnn.state_dict()) == {"out.weight", "out.bias"}  # the filters are a formula, not weights


def test_a_wide_linear_device_starts_with_its_columns_and_never_fills_the_rest() -> None:
    x = rows(40)
    wide = linear(12, 20, generator(1), "columns")
    assert torch.equal(wide(x), torch.cat([x, torch.zeros(40, 8)], dim=1))
    with torch.no_grad():
        for part in wide.parameters():
            part.add_(torch.randn(part.shape, generator=generator(2)))
    assert bool((wide(x)[:, :12] != x).all())
    assert bool((wide(x)[:, 12:] == 0).all())
    narrow = linear(12, 5, generator(1), "columns")
    torch.testing.assert_close(narrow.weight @ narrow.weight.T, torch.eye(5))
    assert sorted(wide.state_dict()) == sorted(narrow.state_dict()) == ["bias", "weight"]
