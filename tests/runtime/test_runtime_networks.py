"""The networks of a configuration: each model gets its geometry, its layers to train, and a sentence if it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpzv import models
from dpzv.config import parse
from dpzv.data.dataset import Dataset
from dpzv.errors import ConfigError
from dpzv.models import MODELS, Model
from dpzv.models.gabor import GaborPatchCNN
from dpzv.models.images import PatchCNN
from dpzv.models.resnet import ResNet18
from dpzv.models.text import TextEncoder
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run_plan import noise_of, plan_of
from dpzv.zo.directions import layout


def dataset(width: int, dtype: type = np.uint8, high: int = 256) -> Dataset:
    """Two devices with `width` random numbers a record."""
    random = np.random.default_rng(0)
    x = tuple(random.integers(1, high, (200, width)).astype(dtype) for _ in range(2))
    y = random.integers(0, 3, 200)
    return Dataset(
        name="random",
        task="classes",
        n_classes=3,
        devices=("one", "two"),
        x_train=x,
        y_train=y,
        x_test=tuple(part[:20] for part in x),
        y_test=y[:20],
        fingerprint="random",
        source="random numbers",
    )


def made(data: Dataset, devices: dict[str, Any], encoder: str = "") -> list[torch.nn.Module]:
    config = parse(
        {
            "data": {"encoder": encoder},
            "devices": {"embedding": 8, **devices},
            "train": {"rounds": 4, "B": 64},
            "noise": {"source": "seeded"},
        }
    )
    plan = plan_of(config, len(data.y_train), len(data.x_train))
    return make_networks(config, data, plan, noise_of(config))


@pytest.mark.parametrize(
    ("model", "start", "width", "kind", "shape"),
    [
        ("cnn4", "random", 768, PatchCNN, (3, 16)),
        ("cnn4", "gabor", 768, GaborPatchCNN, (3, 16)),
        ("cnn4", "gabor", 256, GaborPatchCNN, (1, 16)),
        ("resnet18", "random", 1024, ResNet18, (1, 32)),
    ],
)
def test_image_networks_get_their_geometry(
    model: str, start: str, width: int, kind: type[torch.nn.Module], shape: tuple[int, int]
) -> None:
    data = dataset(width)
    one, two = made(data, {"model": model, "start": start, "last_layers": 1})
    assert isinstance(one, kind)
    where: Any = one.bank if isinstance(one, GaborPatchCNN) else one
    assert (where.channels, where.side) == shape
    assert layout(one).names == ["out.weight", "out.bias"]
    x = torch.from_numpy(data.x_train[0][:3])
    assert one(x).shape == (3, 8)
    assert not torch.equal(one(x), two(x))  # every device draws its own start


def test_last_layers_is_a_setting_for_each_device() -> None:
    one, two = made(dataset(768), {"model": "cnn4", "last_layers": [0, 2]})
    assert len(layout(one).names) == 10
    assert layout(two).names == ["conv4.weight", "conv4.bias", "out.weight", "out.bias"]


@pytest.mark.parametrize(
    ("devices", "width", "reason"),
    [
        ({"model": "cnn4"}, 112, "square images of 1 or 3 channels, got 112"),
        ({"model": "resnet18", "start": "gabor"}, 1024, "'cnn' or 'cnn4', got 'resnet18'"),
        ({"model": "bert", "start": "gabor"}, 64, "got 'bert' at device 1; 'bert' can start by random or weights"),
        ({"model": "cnn4", "last_layers": 6}, 768, "the 5 layers of this network, got 6"),
        ({"model": "resnet"}, 1024, "the value 'resnet' is not known; choose one of: .* resnet18, bert"),
        ({"model": ["linear", "lineal"]}, 1024, "the value 'lineal' is not known; choose one of: linear, "),
        ({"model": "mlp", "start": "dp-pca"}, 1024, "needs devices.model = 'linear', got 'mlp'"),
    ],
)
def test_what_does_not_fit_is_refused(devices: dict[str, Any], width: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(dataset(width), devices)


TWICE = """
import torch

from dpzv.models import NetworkRequest


def make_twice(wanted: NetworkRequest) -> torch.nn.Module:
    return torch.nn.Linear(wanted.inputs, wanted.embedding)
"""


def test_a_new_network_is_its_module_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"devices.model: the value 'twice' is not known"):
        made(dataset(12), {"model": "twice"})
    (tmp_path / "twice.py").write_text(TWICE)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    monkeypatch.setitem(MODELS, "twice", Model("twice:make_twice", ("random",)))
    one, two = made(dataset(12), {"model": ["twice", "linear"], "start": ["random", "dp-pca"]})
    assert one(torch.ones(3, 12)).shape == two(torch.ones(3, 12)).shape == (3, 8)
    with pytest.raises(ConfigError, match=r"start 'gabor' needs devices.model = 'cnn' or 'cnn4', got 'twice'"):
        made(dataset(12), {"model": "twice", "start": "gabor"})


@pytest.fixture
def encoder(tmp_path: Path) -> Callable[[], str]:
    transformers = pytest.importorskip("transformers")

    def make() -> str:
        config = transformers.BertConfig(
            vocab_size=90, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=20,
        )  # fmt: skip
        transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
        return str(tmp_path)

    return make


def test_a_bert_from_a_folder(encoder: Callable[[], str]) -> None:
    folder = encoder()
    data = dataset(12, np.int32, 90)
    one, two = made(data, {"model": "bert", "last_layers": 2}, folder)
    assert isinstance(one, TextEncoder)
    assert {name.split(".")[0] for name in layout(one).names} == {"encoder", "out"}
    ids = torch.from_numpy(data.x_train[0][:3])
    assert one(ids).shape == (3, 8)
    assert torch.equal(one.encoder.embeddings.word_embeddings.weight, two.encoder.embeddings.word_embeddings.weight)
    with pytest.raises(ConfigError, match="at most 20 tokens a device, got 30"):
        made(dataset(30, np.int32, 90), {"model": "bert"}, folder)
