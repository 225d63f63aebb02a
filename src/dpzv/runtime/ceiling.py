"""Backpropagation end to end, without privacy: how much the same devices and the same head could learn.

It is a figure to stand beside others, never a method or a recipe: one process sees all features, labels and gradients.

    python -m dpzv.runtime.ceiling CONFIG.toml FOLDER
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.durable import make_folder, write_atomically
from dpzv.errors import DpzvError
from dpzv.models.losses import labels_of, per_record_loss
from dpzv.rng import torch_generator
from dpzv.runtime.assemble_device import accelerator_of
from dpzv.runtime.assemble_server import make_head
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.journal import measured
from dpzv.runtime.run import load_data
from dpzv.runtime.run_plan import noise_of, plan_of

__all__ = ["ceiling"]

PASSES = 3
"""Passes over the records for each pass of the recipe's refit, since here devices learn too: some thousand steps."""

CHUNK = 8192
"""Test records that are evaluated at once."""


def ceiling(config: Config, data: Dataset) -> dict[str, Any]:
    """Test metrics after joint training by Adam with the batch and the step of the refit, which falls to 0."""
    place, chosen, D = accelerator_of(config), config.head, len(data.y_train)
    networks = make_networks(config, data, plan_of(config, D, len(data.x_train)), noise_of(config))
    for network in networks:
        network.to(place).eval()
    x_train, x_test = ([torch.from_numpy(x).to(place) for x in xs] for xs in (data.x_train, data.x_test))
    y_train, y_test = (labels_of(y, data.task, place) for y in (data.y_train, data.y_test))
    with torch.no_grad():
        inputs = sum(network(x[:2]).shape[1] for network, x in zip(networks, x_train, strict=True))
    head = make_head(config, inputs, data.n_classes if data.task == "classes" else 1, "ceiling")

    def outputs(xs: list[torch.Tensor], ids: slice | torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = head(
            torch.cat([network(x[ids]) for network, x in zip(networks, xs, strict=True)], dim=1)
        )
        return output

    weights = [w for part in (head, *networks) for w in part.parameters() if w.requires_grad]
    adam, loss, epochs = torch.optim.Adam(weights, lr=chosen.refit_eta), per_record_loss(data.task), chosen.refit_epochs
    steps = PASSES * epochs * math.ceil(D / chosen.refit_batch)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for epoch in range(PASSES * epochs):
        order = torch.randperm(D, generator=torch_generator(config.train.seed, "ceiling", epoch)).to(place)
        for start in range(0, D, chosen.refit_batch):
            ids = order[start : start + chosen.refit_batch]
            adam.zero_grad()
            loss(outputs(x_train, ids), y_train[ids]).mean().backward()  # type: ignore[no-untyped-call]
            adam.step()
            decay.step()
    with torch.no_grad():
        chunks = [outputs(x_test, slice(start, start + CHUNK)) for start in range(0, len(y_test), CHUNK)]
    return msgspec.structs.asdict(measured(data, torch.cat(chunks), y_test))


def main(file: Path, folder: Path) -> None:
    """Train by the configuration in `file`, and leave a summary with the metrics in `folder`."""
    config = configuration.parse(msgspec.toml.decode(file.read_bytes()))
    found = ceiling(config, load_data(config))
    make_folder(folder)
    write_atomically(folder / "config.toml", configuration.render(config).encode())
    summary = {"schema": 1, "method": "backpropagation", "seed": config.train.seed, **found}
    write_atomically(folder / "summary.json", msgspec.json.encode(summary))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except DpzvError as error:
        sys.stderr.write(f"dpzv: {error}\n")
        sys.exit(error.exit_code)
