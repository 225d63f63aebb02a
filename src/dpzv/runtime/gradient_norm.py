"""The squared norm of the loss's gradient along a run: what Theorem 1 of the paper bounds on average over the rounds.

The gradient is that of the mean loss over all training records in all weights, devices' and head's, computed by
backpropagation in one place. The run itself is an ordinary simulated one, and sees nothing of it.

    python -m dpzv.runtime.gradient_norm CONFIG.toml FOLDER
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch

from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.models.losses import labels_of, per_record_loss
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.programs import config_in, leave_summary, run_program
from dpzv.runtime.run import load_data
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

__all__ = ["main", "squared_norm"]

CHUNK = 4096
"""Records whose gradient is computed at once."""


def squared_norm(simulation: Simulation, data: Dataset, place: str) -> tuple[float, float]:
    """The mean loss over all training records and the squared norm of its gradient, at the present weights."""
    networks = [device.method.network for device in simulation.devices]
    head = simulation.server_run.server.method.head
    weights = [w for part in (head, *networks) for w in part.parameters()]
    needs = [w.requires_grad for w in weights]
    for w in weights:
        w.requires_grad_(True)
    loss, y = per_record_loss(data.task), labels_of(data.y_train, data.task, place)
    total, sums = 0.0, [torch.zeros_like(w) for w in weights]
    for start in range(0, len(y), CHUNK):
        rows = slice(start, start + CHUNK)
        inputs = [
            network(torch.from_numpy(x[rows]).to(place)) for network, x in zip(networks, data.x_train, strict=True)
        ]
        value = loss(head(torch.cat(inputs, dim=1)), y[rows]).sum()
        for sum_, gradient in zip(sums, torch.autograd.grad(value, weights, allow_unused=True), strict=True):
            if gradient is not None:
                sum_ += gradient
        total += float(value.detach())
    for w, need in zip(weights, needs, strict=True):
        w.requires_grad_(need)
    return total / len(y), sum(float((sum_ / len(y)).double().square().sum()) for sum_ in sums)


def _watched(config: Config, data: Dataset) -> dict[str, Any]:
    """Run `config` and look at the gradient at the start, after 1, 2, 4, 8 and more rounds, and at every evaluation."""
    place = accelerator_of(config)
    simulation = Simulation(config, data)
    lines: list[dict[str, float]] = []

    def look(t: int) -> None:
        value, norm = squared_norm(simulation, data, place)
        lines.append({"round": t, "train_loss": value, "squared_norm": norm})

    def observe(snapshot: Any) -> bool:
        t = snapshot.t
        if snapshot.stage == "rounds" and (t % config.train.eval_every == 0 or t == snapshot.T or t & (t - 1) == 0):
            look(t)
        return True

    with tempfile.TemporaryDirectory() as scratch, simulation.opened(RunFolder.create(Path(scratch) / "run", "")):
        look(0)
        summary = simulation.run(observe)
        networks = [device.method.network for device in simulation.devices]
        sizes = [sum(w.numel() for w in network.parameters() if w.requires_grad) for network in networks]
        d_0 = sum(w.numel() for w in simulation.server_run.server.method.head.parameters())
    assert summary is not None
    return {**summary, "gradient": lines, "d_0": d_0, "d_m": max(sizes), "d": d_0 + sum(sizes), "M": len(sizes)}


def main(file: Path, folder: Path) -> None:
    """Run the configuration in `file`, and leave a summary with the gradient's norms in `folder`."""
    config = config_in(file)
    short = msgspec.structs.replace(config, head=msgspec.structs.replace(config.head, final="private"))
    leave_summary(folder, config, _watched(short, load_data(config)))


if __name__ == "__main__":
    run_program(main)
