"""Every method trains every workload's network, on small generated records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from dpzv import config as configuration
from dpzv import recipes
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import run

METHODS = ("dpzv", "vafl", "zoo-vfl", "vfl-czofo")
D, D_TEST = 48, 16
WORDS = 120


def generator(name: str) -> np.random.Generator:
    return np.random.default_rng(len(name))


def dataset(xs: list[NDArray[Any]], y: NDArray[Any], n_classes: int) -> Dataset:
    """Records with labels that every device's features tell apart."""
    task = "binary" if n_classes == 2 else "classes"
    return from_arrays(
        Records([x[:D] for x in xs], y[:D]), Records([x[D:] for x in xs], y[D:]), task=task, n_classes=n_classes
    )


def pictures(name: str, devices: int, pixels: int, n_classes: int) -> Dataset:
    """Noise, brighter in one part of the picture for each class."""
    draw = generator(name)
    y = np.arange(D + D_TEST) % n_classes
    xs = []
    for _ in range(devices):
        x = draw.integers(0, 100, (len(y), pixels))
        for label in range(n_classes):
            x[y == label, label * (pixels // n_classes) : (label + 1) * (pixels // n_classes)] += 120
        xs.append(x.astype(np.uint8))
    return dataset(xs, y, n_classes)


def texts() -> Dataset:
    """Token ids, from one half of the words for each class."""
    draw = generator("texts")
    y = np.arange(D + D_TEST) % 2
    halves = y[:, None] * (WORDS // 2 - 4)
    return dataset([(draw.integers(4, WORDS // 2, (len(y), 8)) + halves).astype(np.int32) for _ in range(3)], y, 2)


def table() -> Dataset:
    draw = generator("table")
    y = np.arange(D + D_TEST) % 2
    xs = [(draw.normal(size=(len(y), k)) + y[:, None]).astype(np.float32) for k in (13, 10)]
    return dataset(xs, y, 2)


def tiny_encoder(folder: Path, kind: str) -> Path:
    """A Hugging Face folder with an encoder of two narrow layers."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=16,
    )
    getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("bert"), "Bert")


@pytest.fixture(scope="module")
def tiny_mpnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("mpnet"), "MPNet")


STEPS = {
    "dpzv": ("train.eta_m=1e-4",),
    "zoo-vfl": ("train.eta_m=1e-4",),
    "vafl": ("train.eta_m=0.01",),
    "vfl-czofo": ("train.eta_m=1e-3", "train.q=4"),
}


def train(recipe: str, data: Dataset, method: str, folder: Path, *settings: str) -> None:
    """A few rounds of `recipe` without noise on `data`: every device's weights move, and the loss falls."""
    tree = recipes.tree(recipe)
    small = (
        f"train.method={method}",
        "privacy.epsilon=inf",
        "privacy.C=inf",
        "train.B=16",
        "train.momentum=0",
        "train.eval_every=1000",
        "head.rule=sgd",
        "head.hidden=16",
        "head.eta_0=0.1",
        "head.refit_steps=4",
        "noise.source=seeded",
        "runtime.threads=1",
    )
    for assignment in (*small, *STEPS[method], *settings):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    config = configuration.parse(tree)
    starts: list[dict[str, torch.Tensor]] = []

    def networks(*arguments: Any) -> list[torch.nn.Module]:
        made = make_networks(config, data, *arguments)
        starts.extend({name: w.clone() for name, w in network.state_dict().items()} for network in made)
        return made

    run(config, data, networks, folder, lambda snapshot: True, math.inf)
    for m, start in enumerate(starts, 1):
        trained = load_file(folder / "weights" / f"device-{m}.safetensors")
        assert any(not torch.equal(w, trained[name]) for name, w in start.items()), f"device {m}"
    losses = [json.loads(line)["test_loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < min(losses[0], math.log(data.n_classes)), "no better than a guess"


@pytest.mark.parametrize("method", METHODS)
def test_cifar10(method: str, tmp_path: Path) -> None:
    train("cifar10", pictures("patches", 4, 768, 10), method, tmp_path / "run", "train.rounds=20")


@pytest.mark.parametrize("method", METHODS)
def test_modelnet40(method: str, tmp_path: Path) -> None:
    # eleven million parameters bear small steps only
    eta = {"vafl": 1e-4, "vfl-czofo": 1e-5}.get(method, 1e-6)
    settings = ("train.rounds=2", "devices.last_layers=0", "devices.embedding=8", f"train.eta_m={eta}")
    train("modelnet40", pictures("views", 2, 1024, 4), method, tmp_path / "run", *settings)


@pytest.mark.parametrize("method", METHODS)
def test_amazon(method: str, tmp_path: Path, tiny_bert: Path) -> None:
    settings = (f"data.encoder={tiny_bert}", "devices.embedding=24", "devices.last_layers=0", "head.eta_0=0.01")
    train("amazon", texts(), method, tmp_path / "run", "train.rounds=60", *settings)


@pytest.mark.parametrize("method", ["dpzv", "vafl"])
def test_imdb_with_an_mpnet(method: str, tmp_path: Path, tiny_mpnet: Path) -> None:
    settings = (f"data.encoder={tiny_mpnet}", "devices.embedding=24", "devices.last_layers=0", "head.eta_0=0.01")
    train("imdb", texts(), method, tmp_path / "run", "train.rounds=60", *settings)


@pytest.mark.parametrize("method", METHODS)
def test_credit(method: str, tmp_path: Path) -> None:
    train("credit", table(), method, tmp_path / "run", "train.rounds=40")
