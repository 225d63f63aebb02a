"""What layers that never move make of records: the same numbers, once for each record, and on a disk only if asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dpzv.models.images import PatchCNN, StripCNN
from dpzv.models.layers import train_last
from dpzv.models.resnet import ResNet18
from dpzv.models.text import TextEncoder
from dpzv.runtime import computed_once as room
from dpzv.runtime.computed_once import FOLDER, computed_once
from tests.models.dense_networks import mlp
from tests.models.small_encoders import TOKENS, WORDS, generator, small_encoder


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(room, "_memory", {})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records went through the layers, part by part."""
    counts: list[int] = []
    features = ResNet18.features

    def counted(self: ResNet18, x: Tensor) -> Tensor:
        counts.append(len(x))
        return features(self, x)

    monkeypatch.setattr(ResNet18, "features", counted)
    return counts


def resnet(seed: int = 0, last: int = 1) -> ResNet18:
    network = ResNet18(1, 16, 8, generator(seed)).eval()
    train_last(network, last)
    return network


def images(n: int = 300) -> Tensor:
    return torch.rand(n, 256, generator=generator(1))


def test_the_map_gives_the_same_for_features_as_for_records() -> None:
    network, x = resnet(), images()
    kept = computed_once(network, x)
    torch.testing.assert_close(network(kept), network(x))
    assert computed_once(network, kept) is kept
    with torch.no_grad():
        network.out.weight.mul_(2)  # the map may move
    assert torch.equal(computed_once(network, x.clone()), kept)
    torch.testing.assert_close(network(kept), network(x))
    torch.testing.assert_close(computed_once(network, x.flip(0)), kept.flip(0), rtol=0, atol=0)
    other = resnet(2)
    torch.testing.assert_close(other(computed_once(other, x)), other(x))
    assert not torch.equal(computed_once(other, x), kept)


@pytest.mark.parametrize("network", [StripCNN(4, 28, 6, generator(0)), PatchCNN(1, 8, 6, generator(0))], ids=["2", "4"])
def test_pictures_are_never_taken_for_features(network: StripCNN | PatchCNN) -> None:
    """Both networks have as many features as such a picture has numbers."""
    train_last(network, 1)
    inputs = 112 if isinstance(network, StripCNN) else 64
    x = torch.randint(0, 256, (70, inputs), generator=generator(1), dtype=torch.uint8)
    kept = computed_once(network, x)
    assert kept.shape == (70, inputs, 1)
    assert computed_once(network, kept) is kept
    torch.testing.assert_close(network(kept), network(x))
    torch.testing.assert_close(network(x.float() / 255), network(x))
    torch.testing.assert_close(network(computed_once(network, x.float() / 255)), network(x))


def test_networks_in_which_more_moves_keep_their_records() -> None:
    x = images()
    assert computed_once(resnet(last=0), x) is x
    assert computed_once(resnet(last=2), x) is x
    assert computed_once(mlp(256, 5, 3, generator(0)), x) is x


def test_a_record_is_computed_once(seen: list[int]) -> None:
    network, x = resnet(), images(130)
    seen.clear()  # a start looks at some images of its own
    computed_once(network, torch.cat([x[:100], x[:20]]))
    assert sum(seen) == 128  # a hundred, filled up to two parts of 64
    computed_once(network, x)
    assert sum(seen) == 192  # thirty more, filled up
    computed_once(network, x[50:])
    assert sum(seen) == 192


def test_files_are_written_only_where_a_folder_is_named(
    seen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = resnet(), images(130)
    seen.clear()  # a start looks at some images of its own
    monkeypatch.chdir(tmp_path)
    without = computed_once(network, x)
    assert not list(tmp_path.rglob("*"))
    folder = tmp_path / "features"
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setattr(room, "PART", 100)
    for memory in ({}, {}):  # two processes, one after the other
        monkeypatch.setattr(room, "_memory", memory)
        assert torch.equal(computed_once(network, x), without)
    assert sum(seen) == 192 + 128 + 64
    assert len(list(folder.glob("*.npz"))) == 2
    assert {file.stat().st_mode & 0o077 for file in folder.iterdir()} == {0}


def test_files_with_a_third_dimension_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the networks for images left had one, and a reproduction goes on with them."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    network, x = PatchCNN(1, 8, 6, generator(0)), images(70)[:, :64]
    train_last(network, 1)
    kept = computed_once(network, x[:64])
    (file,) = tmp_path.glob("*.npz")
    with np.load(file) as part:
        keys, made = part["keys"], part["made"]
    np.savez(file, keys=keys, made=made[:, :, None] * 2)
    monkeypatch.setattr(room, "_memory", {})
    again = computed_once(network, x)
    assert again.shape == (70, 64, 1)
    assert torch.equal(again[:64], kept * 2)  # they were read, and not made again


def test_the_encoder_of_texts_is_computed_once() -> None:
    pytest.importorskip("transformers")
    network = TextEncoder(small_encoder("Bert", 0, attn_implementation="sdpa"), 10, generator(1))
    ids = torch.randint(0, WORDS, (70, TOKENS), generator=generator(3), dtype=torch.int32)
    train_last(network, 2)
    assert computed_once(network, ids) is ids
    train_last(network, 1)
    kept = computed_once(network, ids)
    assert kept.is_floating_point()
    torch.testing.assert_close(network(kept), network(ids))
