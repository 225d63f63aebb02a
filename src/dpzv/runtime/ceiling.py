"""Backpropagation end to end, without privacy: how much the same devices and the same head could learn.

It is only a figure to compare with. It is no method and no recipe, since one process sees all features and labels.

    python -m dpzv.runtime.ceiling CONFIG.toml FOLDER
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.models.losses import labels_of, per_record_loss
from dpzv.rng import torch_generator
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.journal import measured
from dpzv.runtime.programs import config_in, leave_summary, run_program
from dpzv.runtime.run import load_data
from dpzv.runtime.run_plan import noise_of, plan_of
from dpzv.runtime.server_head import first_head

__all__ = ["ceiling"]

STEPS, BATCH, ETA = 4, 512, 2e-3
"""Steps for each step of the refit (4,000 in all, as devices learn too), records in a step, and Adam's step size."""

CHUNK = 8192
"""Test records that are evaluated at once."""


def ceiling(config: Config, data: Dataset) -> dict[str, Any]:
    """Test metrics after joint training by Adam, whose step falls to 0 along a cosine."""
    place, D = accelerator_of(config), len(data.y_train)
    networks = make_networks(config, data, plan_of(config, D, len(data.x_train)), noise_of(config))
    for network in networks:
        network.to(place).eval()
    x_train, x_test = ([torch.from_numpy(x).to(place) for x in xs] for xs in (data.x_train, data.x_test))
    y_train, y_test = (labels_of(y, data.task, place) for y in (data.y_train, data.y_test))
    with torch.no_grad():
        inputs = sum(network(x[:2]).shape[1] for network, x in zip(networks, x_train, strict=True))
    head = first_head(config, data.server_records(), inputs, ())

    def predicted(xs: list[torch.Tensor], ids: slice | torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = head(
            torch.cat([network(x[ids]) for network, x in zip(networks, xs, strict=True)], dim=1)
        )
        return output

    weights = [w for part in (head, *networks) for w in part.parameters() if w.requires_grad]
    adam, loss, steps = torch.optim.Adam(weights, lr=ETA), per_record_loss(data.task), STEPS * config.head.refit_steps
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for t in range(steps):  # the name of the stream, which draws the batches, is a format of seeded figures
        ids = torch.randint(D, (min(D, BATCH),), generator=torch_generator(config.train.seed, "ceiling", t)).to(place)
        adam.zero_grad()
        loss(predicted(x_train, ids), y_train[ids]).mean().backward()  # type: ignore[no-untyped-call]
        adam.step()
        decay.step()
    with torch.no_grad():
        chunks = [predicted(x_test, slice(start, start + CHUNK)) for start in range(0, len(y_test), CHUNK)]
    return msgspec.structs.asdict(measured(data, torch.cat(chunks), y_test))


def main(file: Path, folder: Path) -> None:
    """Train by the configuration in `file`, and leave a summary with the metrics in `folder`."""
    config = config_in(file)
    found = ceiling(config, load_data(config))
    leave_summary(folder, config, {"method": "backpropagation", "seed": config.train.seed, **found})


if __name__ == "__main__":
    run_program(main)
