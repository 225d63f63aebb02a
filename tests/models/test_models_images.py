"""Networks for patches and views: geometry, what the public bank sees, ResNet-18's layout, rows by themselves."""

from __future__ import annotations

import math

import pytest
import torch
from tests.oracles import direction, whole
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models.gabor import Energies, GaborPatchCNN, PatchBank
from dpzv.models.images import PatchCNN, geometry, pixels
from dpzv.models.resnet import BasicBlock, ResNet18, shapes
from dpzv.models.rowwise import require_rowwise
from dpzv.zo.directions import layout
from dpzv.zo.perturb import step, two_point


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def resnet() -> ResNet18:

    return ResNet18(1, 32, 64, generator(1)).eval()


def views(n: int, channels: int = 1, side: int = 32, seed: int = 5) -> Tensor:
    return shapes(n, channels, side, generator(seed)).mul(255).byte()


def test_geometry_of_flat_images() -> None:
    assert geometry(1024) == (1, 32)
    assert geometry(768) == (3, 16)
    assert geometry(3 * 32 * 32) == (3, 32)
    for side in range(1, 40):
        assert geometry(side**2) == (1, side)
        assert geometry(3 * side**2) == (3, side)
    with pytest.raises(ConfigError, match="square images of 1 or 3 channels, got 112 numbers"):
        geometry(112)


def test_pixels_are_in_channel_row_column_order() -> None:
    x = torch.arange(24, dtype=torch.uint8).view(1, 24)
    image = pixels(x, 3, 2, 4)
    torch.testing.assert_close(image[0, 2, 1, 3], torch.tensor(23 / 255))
    torch.testing.assert_close(image[0, 1, 0, 2], torch.tensor(10 / 255))


def test_the_four_layer_cnn_against_torchs_own_layers() -> None:
    cnn, x = PatchCNN(3, 16, 8, generator(0)), torch.rand(6, 768, generator=generator(1))
    pool = nn.MaxPool2d(2)
    front = nn.Sequential(cnn.conv1, nn.ReLU(), pool, cnn.conv2, nn.ReLU(), pool)
    back = nn.Sequential(cnn.conv3, nn.ReLU(), cnn.conv4, nn.ReLU(), pool, nn.Flatten(), cnn.out)
    torch.testing.assert_close(cnn(x), back(front((x.view(6, 3, 16, 16) - 0.47) / 0.25)))
    with pytest.raises(ConfigError, match="at least 8x8 pixels, got 6x6"):
        PatchCNN(1, 6, 8, generator(0))


def grating(angle: float, wavelength: float, phase: float = 0.0) -> Tensor:
    """[16, 16] in [0, 1]."""
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    wave = 2 * math.pi / wavelength * (x * math.cos(angle) + y * math.sin(angle)) + phase
    return 0.5 + 0.3 * wave.cos()


def test_energies_see_their_own_orientation_in_the_right_quarter() -> None:
    plane = torch.zeros(8, 1, 16, 16)
    for k in range(8):
        plane[k, 0, 8:, :8] = grating(math.pi * k / 8, 4.0)[8:, :8]  # lower left
    energy = Energies(8, 5, 4.0, 1.5, 1, mean=0.0, deviation=1.0)(plane)
    assert energy.shape == (8, 8, 2, 2)
    for k in range(8):
        assert energy[k].sum((1, 2)).argmax() == k
        assert energy[k, k].flatten().argmax() == 2


def test_the_bank_sees_colour_only_where_there_is_colour() -> None:
    bank = PatchBank(3, 16)
    grey = grating(0.3, 6.0).expand(3, 16, 16).reshape(1, 768)
    red = torch.stack([grating(0.3, 6.0), torch.full((16, 16), 0.5), torch.full((16, 16), 0.5)]).reshape(1, 768)
    h_grey, h_red = bank(grey).view(27, 4), bank(red).view(27, 4)
    blind = (0.0 - bank.colour.mean) / bank.colour.deviation
    torch.testing.assert_close(h_grey[19:], torch.full((8, 4), blind), atol=2e-2, rtol=0)
    assert (h_red[19:].amax(0) > blind + 2).all()
    # one channel sees what three equal ones show
    one = PatchBank(1, 16)(grating(0.3, 6.0).reshape(1, 256)).view(17, 4)
    torch.testing.assert_close(one, h_grey[[0, *range(3, 19)]], atol=1e-5, rtol=1e-5)


def test_training_a_gabor_patch_moves_the_map_only() -> None:
    cnn = GaborPatchCNN(3, 16, 32, generator(0))
    assert layout(cnn).d == 108 * 32 + 32
    assert set(cnn.state_dict()) == {"out.weight", "out.bias"}  # the bank is a formula, not weights
    flat = torch.full((2, 768), 0, dtype=torch.uint8)
    assert torch.isfinite(cnn(flat)).all()
    with pytest.raises(ConfigError, match="got 10x10"):
        GaborPatchCNN(3, 10, 32, generator(0))


def test_resnet18_has_the_published_layout(resnet: ResNet18) -> None:
    """Four stages of two blocks, widths 64 to 512; parameters as in the original but for stem and map."""
    convs = [m for m in resnet.modules() if isinstance(m, nn.Conv2d)]
    assert len([c for c in convs if c.kernel_size == (3, 3)]) == 17  # with the map: 18 layers
    assert len([m for m in resnet.modules() if isinstance(m, BasicBlock)]) == 8
    original = 11_689_512  # with a 7x7 stem of 3 channels and a map to 1000 classes
    theirs, ours = 64 * 3 * 49 + 512 * 1000 + 1000, 64 * 9 + 512 * 64 + 64
    assert layout(resnet).d == original - theirs + ours
    assert not [m for m in resnet.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_a_block_against_its_formula() -> None:
    block, x = BasicBlock(64, 128, 2, generator(0)), torch.randn(3, 64, 8, 8, generator=generator(1))
    branch = nn.Sequential(block.conv1, block.norm1, nn.ReLU(), block.conv2, block.norm2)
    expected = (branch(x) + block.shortcut(x)).relu()
    kept = x.clone()
    torch.testing.assert_close(block(x), expected)
    assert torch.equal(x, kept)
    assert expected.shape == (3, 128, 4, 4)
    same = BasicBlock(64, 64, 1, generator(0))
    kept = x.clone()
    same(x)
    assert torch.equal(x, kept)  # the identity shortcut hands out x itself


def test_rows_of_a_resnet_stay_by_themselves(resnet: ResNet18) -> None:
    x = views(5)
    assert require_rowwise(resnet, x[:3], name="device 1") == 64
    replaced = x.clone()
    replaced[3] = 200
    others = torch.arange(5) != 3
    for a, b in zip(
        two_point(resnet, x, direction(resnet, 3), 1e-3),
        two_point(resnet, replaced, direction(resnet, 3), 1e-3),
        strict=True,
    ):
        assert torch.equal(a[others], b[others])
        assert not torch.equal(a[3], b[3])


def test_a_resnet_at_w_plus_and_minus_against_moved_copies(resnet: ResNet18) -> None:
    x, lam = views(3), 1e-3
    h_plus, h_minus = two_point(resnet, x, direction(resnet, 9), lam)
    u = whole(layout(resnet), 9)
    for h, sign in ((h_plus, 1), (h_minus, -1)):
        copy = ResNet18(1, 32, 64, generator(1)).eval()
        with torch.no_grad():
            for w, part in zip(layout(copy).parameters, u, strict=True):
                w += sign * lam * part
            torch.testing.assert_close(h, copy(x), atol=1e-4, rtol=1e-4)
    assert (h_plus - h_minus).abs().max() > 1e-2


def test_resnet_embeddings_start_centred_with_a_deviation_near_one(resnet: ResNet18) -> None:
    with torch.no_grad():
        h = resnet(views(64))
    assert 0.5 < h.std(0).mean() < 2
    assert h.mean(0).abs().mean() < 0.7


def test_a_resnets_start_depends_on_its_generator_alone(resnet: ResNet18) -> None:
    state = torch.random.get_rng_state()
    again, other = ResNet18(1, 32, 64, generator(1)), ResNet18(1, 32, 64, generator(2))
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b in zip(resnet.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(resnet.stem[0].weight, other.stem[0].weight)
    step(direction(again, 0), 1e-3)
    assert not torch.equal(resnet.out.weight, again.out.weight)


def test_a_resnet_of_three_channels_and_too_small_images() -> None:
    small = ResNet18(3, 16, 8, generator(0)).eval()
    assert small(views(2, 3, 16)).shape == (2, 8)
    with pytest.raises(ConfigError, match="at least 16x16 pixels, got 8x8"):
        ResNet18(1, 8, 8, generator(0))
