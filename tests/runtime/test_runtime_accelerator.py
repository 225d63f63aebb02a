"""Where torch computes: the same rounds on a CPU and on CUDA within floating point, and with how many threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpzv import Federation, recipes
from dpzv import config as configuration
from dpzv.rng import seed_of
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.run import start
from dpzv.zo.directions import Block, Direction


@pytest.fixture
def threads() -> Iterator[int]:
    """Three threads of torch, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def on_the_cpu(self: Direction, block: Block) -> torch.Tensor:
    """A direction drawn where every machine draws the same, then moved."""
    generator = torch.Generator().manual_seed(seed_of(self._seed, "direction", block.number))
    return torch.randn(block.size, generator=generator).to(block.accelerator)


def weights(method: str, accelerator: str, folder: Path) -> dict[str, torch.Tensor]:
    """The devices' weights after a short run with injected directions."""
    tree = recipes.tree("digits")
    settings = ("train.rounds=12", "privacy.epsilon=5", "privacy.protects=labels", "noise.source=seeded")
    eta = {"vafl": 0.1, "vfl-czofo": 0.01}.get(method, 0.01)
    for assignment in (*settings, f"train.method={method}", f"train.eta_m={eta}", "head.rule=frozen"):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    config = configuration.parse(configuration.merge(tree, {"runtime": {"accelerator": accelerator}}))
    start(config, folder, lambda snapshot: True, math.inf)
    return {
        f"{file.stem}.{name}": tensor
        for file in sorted((folder / "weights").glob("device-*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("method", ["dpzv", "vafl", "zoo-vfl", "vfl-czofo"])
def test_cpu_and_cuda_agree(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Direction, "_gaussian", on_the_cpu)
    here, there = (weights(method, name, tmp_path / name) for name in ("cpu", "cuda"))
    again = weights(method, "cpu", tmp_path / "again")
    assert all(torch.equal(here[name], again[name]) for name in here)  # a seed fixes a run on one machine
    for name, tensor in here.items():
        # a zeroth-order difference loses three digits of float32 to lam = 1e-3
        assert (tensor - there[name]).abs().max() < 1e-4, name


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (("devices.model=linear",), 1),
        (("devices.model=mlp", "runtime.threads=2"), 2),
        (("devices.model=cnn",), 3),
        (('devices.model=["linear", "cnn", "linear", "linear"]',), 3),
    ],
)
def test_small_networks_get_one_thread_unless_the_configuration_names_some(
    changes: tuple[str, ...], expected: int, threads: int
) -> None:
    config = configuration.parse(recipes.tree("digits"))
    for change in changes:
        config = configuration.parse(configuration.merge(msgspec.to_builtins(config), configuration.set_key(change)))
    accelerator_of(config)
    assert torch.get_num_threads() == expected


@pytest.mark.parametrize(("hidden", "expected"), [(8, 1), (6000, 3)])
def test_networks_of_users_get_all_threads_if_they_are_large(hidden: int, expected: int, threads: int) -> None:
    rng = np.random.default_rng(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2))
    federation = Federation([network], [rng.normal(size=(80, 8)).astype("f4")], rng.integers(2, size=80), task="binary")
    settings = {"train.rounds": 1, "train.B": 64, "noise.source": "seeded", "head.rule": "frozen"}
    seen = []
    federation.fit(settings, progress=lambda snapshot: seen.append(torch.get_num_threads()))
    assert set(seen) == {expected}
    assert torch.get_num_threads() == threads  # those of the caller again
