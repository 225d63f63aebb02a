"""The devices' networks of a configuration, at their start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from dpzv.config import Config, per_device
from dpzv.data.dataset import Dataset
from dpzv.data.encoder import encoder_folder
from dpzv.declarations import start_facts
from dpzv.errors import ConfigError, DataError, PrivacyRefused
from dpzv.models import MODELS, NetworkRequest
from dpzv.models.dense import WhitenedLinear
from dpzv.models.layers import train_last
from dpzv.models.starts import (
    MatrixNoise,
    dp_pca_start,
    dp_whiten_start,
    moment_norm,
    pca_start,
    set_linear,
    set_whitening,
    whiten_start,
)
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan, start_event
from dpzv.rng import torch_generator

__all__ = [
    "Networks",
    "check_networks",
    "load_weights",
    "make_network",
    "make_networks",
    "mixed_columns",
    "with_plain_starts",
]

Networks = Callable[[PrivacyPlan, NoiseSource], list[torch.nn.Module]]
"""Makes the devices' networks once the plan is known, since a private start needs its noise."""

C_START = 1.0  # the public constant appended to each row before a private start
FLOOR = 1e-3  # public floor of a start's eigenvalues, in units of one record's squared feature


def check_networks(config: Config, M: int) -> None:
    """Refuse settings of the M devices that are too many or too few, and starts that their models cannot have."""
    for name in config.devices.__struct_fields__:
        per_device(f"devices.{name}", getattr(config.devices, name), M)
    models = per_device("devices.model", config.devices.model, M)
    for m, start in enumerate(per_device("devices.start", config.devices.start, M), 1):
        _check_start(models[m - 1], start, m)


def _check_start(model: str, start: str, m: int) -> None:
    if start not in MODELS[model].starts:
        fitting = " or ".join(f"'{name}'" for name, kind in MODELS.items() if start in kind.starts)
        raise ConfigError(
            f"start '{start}' needs devices.model = {fitting}, got '{model}' at device {m}; '{model}' can start by "
            f"{' or '.join(MODELS[model].starts)}."
        )


def with_plain_starts(config: Config, M: int) -> Config:
    """The configuration with starts that make the same networks from a few rows, without noise."""
    plain = tuple(map(_same_shapes, per_device("devices.start", config.devices.start, M)))
    return replace(config, devices=replace(config.devices, start=plain))


def _same_shapes(start: str) -> str:
    facts = start_facts(start)
    if not (facts.reads or facts.private):
        return start
    return "whiten" if facts.whitens else "random"


def mixed_columns(config: Config, m: int, M: int, columns: int) -> str:
    """A sentence if device m of M sends fewer numbers than it has encoded columns and starts by them, else nothing."""
    start = per_device("devices.start", config.devices.start, M)[m - 1]
    width = per_device("devices.embedding", config.devices.embedding, M)[m - 1]
    if not start_facts(start).columns or width >= columns:
        return ""
    return (
        f"{columns} encoded columns become {width} numbers a record, which start as random mixtures of them; "
        f"devices.embedding = {columns} would keep them all."
    )


def make_networks(config: Config, data: Dataset, plan: PrivacyPlan, noise: NoiseSource) -> list[torch.nn.Module]:
    """One network for each device, with its start; a dp-pca start uses the plan's noise."""
    return [make_network(config, m, plan.M, x, plan, noise) for m, x in enumerate(data.x_train, 1)]


def make_network(
    config: Config, m: int, M: int, x: NDArray[Any], plan: PrivacyPlan | None, noise: NoiseSource
) -> torch.nn.Module:
    """The network of device m of M for its train features `x` [D, d_m]; only `devices.last_layers` are trainable in it.

    Only a private start takes the plan; it is refused without one.
    """
    devices, i = config.devices, m - 1
    model = per_device("devices.model", devices.model, M)[i]
    start = per_device("devices.start", devices.start, M)[i]
    width = per_device("devices.embedding", devices.embedding, M)[i]
    _check_start(model, start, m)
    network = MODELS[model].make(
        NetworkRequest(
            inputs=x.shape[1],
            embedding=width,
            hidden=per_device("devices.hidden", devices.hidden, M)[i],
            start=start,
            encoder=lambda: encoder_folder(config.data.encoder),
            generator=torch_generator(config.train.seed, "start", m),  # the stream's name is a format
        )
    )
    facts = start_facts(start)
    if facts.private and plan is None:
        raise PrivacyRefused(
            f"the start '{start}' of device {m} takes its noise from a privacy plan, got none; make a plan."
        )
    if facts.private and plan is not None:
        _put_private(network, i, x, per_device("devices.R", devices.R, M)[i], plan, noise)
    elif isinstance(network, WhitenedLinear):
        set_whitening(network, whiten_start(x, floor=FLOOR))
    elif facts.reads:
        set_linear(network, pca_start(x, width, floor=FLOOR))
    elif facts.given:
        _load(network, per_device("devices.weights", devices.weights, M)[i], m)
    if isinstance(network, WhitenedLinear) and config.head.model == "sum":
        # The sum then starts at the base rate for every record, so no random weights have to be unlearned first. A head
        # with ReLU needs embeddings that differ, so there the map of whitened columns starts at random.
        torch.nn.init.zeros_(network.linear.weight)
    train_last(network, per_device("devices.last_layers", devices.last_layers, M)[i])
    return network


def _put_private(
    network: torch.nn.Module, i: int, x: NDArray[Any], R: float, plan: PrivacyPlan, noise: NoiseSource
) -> None:
    """Put the start of device i+1 into its network, from its noisy second moments with the plan's noise.

    The name of the noise's stream is a format of seeded runs.
    """
    largest = moment_norm(R, C_START)
    scale = start_event(plan, i).noise_multiplier * largest
    grid = noise.grid(largest) if scale else 0.0
    drawn = MatrixNoise(
        scale,
        grid,
        lambda scales, grid: noise.added(scales, grid, "start", i + 1) if scale else np.zeros(scales.shape),
    )
    floor = max(FLOOR, drawn.largest(x.shape[1], len(x)))
    if isinstance(network, WhitenedLinear):
        set_whitening(network, dp_whiten_start(x, R=R, c=C_START, noise=drawn, floor=floor))
    elif isinstance(network, torch.nn.Linear):
        set_linear(network, dp_pca_start(x, network.out_features, R=R, c=C_START, noise=drawn, floor=floor))


def _load(network: torch.nn.Module, file: str, m: int) -> None:
    if not Path(file).is_file():
        raise DataError(f"device {m} starts from weights, but the file '{file}' does not exist; set devices.weights.")
    load_weights(network, Path(file), m)


def load_weights(network: torch.nn.Module, file: Path, m: int) -> None:
    """Put the weights in a file into the network of device m; names and shapes must match."""
    try:
        network.load_state_dict(safetensors.torch.load_file(file))
    except (OSError, safetensors.SafetensorError, RuntimeError) as error:
        reason = str(error).replace("\n", " ")
        raise DataError(f"the weights {file} do not fit device {m}'s network ({reason}); give matching ones.") from None
