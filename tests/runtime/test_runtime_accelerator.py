"""The same directions and batches give the same rounds on a CPU and on CUDA, within floating point."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpzv import config as configuration
from dpzv import recipes
from dpzv.rng import seed_of
from dpzv.runtime.run import start
from dpzv.zo.directions import Block, Direction


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
