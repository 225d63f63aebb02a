"""The devices' networks of a configuration, at their start; and the final head of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from dpzv.config import Config, per_device
from dpzv.data.dataset import Dataset
from dpzv.data.encoder import encoder_folder
from dpzv.errors import ConfigError, DataError, PrivacyRefused
from dpzv.models.dense import linear, mlp
from dpzv.models.gabor import GaborCNN
from dpzv.models.gabor_patch import GaborPatchCNN
from dpzv.models.head import Head
from dpzv.models.images import PatchCNN, StripCNN, geometry
from dpzv.models.layers import train_last
from dpzv.models.resnet import ResNet18
from dpzv.models.starts import LinearStart, dp_pca_start, pca_start, set_linear
from dpzv.models.text import TextEncoder, load_bert
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan, start_event
from dpzv.rng import torch_generator
from dpzv.terms import ModelName, StartName

__all__ = ["load_head", "make_network", "make_networks"]

STRIP_COLUMNS = 28  # the cnn's strips are rows of 28 pixels, as in mnist
C_START = 1.0  # the public constant appended to each row before dp-pca
FLOOR = 1e-3  # public floor of dp-pca's eigenvalues, in units of one record's squared feature


def make_networks(config: Config, data: Dataset, plan: PrivacyPlan, noise: NoiseSource) -> list[torch.nn.Module]:
    """One network a device, with its start; a dp-pca start uses the plan's noise."""
    return [make_network(config, m, plan.M, x, plan, noise) for m, x in enumerate(data.x_train, 1)]


def make_network(
    config: Config, m: int, M: int, x: NDArray[Any], plan: PrivacyPlan | None, noise: NoiseSource
) -> torch.nn.Module:
    """The network of device m of M for its train features `x` [D, d_m]; only `devices.last_layers` are trainable in it.

    Only a dp-pca start takes the plan; it is refused without one.
    """
    devices, i = config.devices, m - 1
    models: tuple[ModelName, ...] = per_device("devices.model", devices.model, M)
    starts: tuple[StartName, ...] = per_device("devices.start", devices.start, M)
    model, start = models[i], starts[i]
    width = per_device("devices.embedding", devices.embedding, M)[i]
    generator = torch_generator(config.train.seed, "start", m)
    if model == "bert":
        network: torch.nn.Module = _text(start, config.data.encoder, x.shape[1], width, generator)
    else:
        hidden = per_device("devices.hidden", devices.hidden, M)[i]
        network = _network(model, start, x.shape[1], hidden, width, generator)
    if start in ("pca", "dp-pca"):
        if not isinstance(network, torch.nn.Linear):
            raise ConfigError(f"start '{start}' needs devices.model = 'linear', got '{model}' at device {m}.")
        if start == "pca":
            set_linear(network, pca_start(x, width, floor=FLOOR))
        elif plan is None:
            raise PrivacyRefused(f"the start 'dp-pca' of device {m} takes its noise from a privacy plan, got none.")
        else:
            set_linear(network, _dp_pca(i, x, width, per_device("devices.R", devices.R, M)[i], plan, noise))
    elif start == "weights":
        _load(network, per_device("devices.weights", devices.weights, M)[i], m)
    train_last(network, per_device("devices.last_layers", devices.last_layers, M)[i])
    return network


def _dp_pca(i: int, x: NDArray[Any], embedding: int, R: float, plan: PrivacyPlan, noise: NoiseSource) -> LinearStart:
    """The start of device i+1 from its noisy second moments, with the plan's noise."""
    scale = start_event(plan, i).noise_multiplier * (R**2 + C_START**2)
    return dp_pca_start(
        x,
        embedding,
        R=R,
        c=C_START,
        scale=scale,
        gaussian=lambda shape: noise.gaussian(shape, "start", i + 1),
        floor=max(FLOOR, 2 * scale * x.shape[1] ** 0.5 / len(x)),  # smaller ones are noise
    )


def _network(
    model: ModelName, start: StartName, inputs: int, hidden: int, embedding: int, generator: torch.Generator
) -> torch.nn.Module:
    if start == "gabor" and model not in ("cnn", "cnn4"):
        raise ConfigError(
            f"start 'gabor' needs devices.model = 'cnn' or 'cnn4', got '{model}'; it is a bank of image filters."
        )
    if model == "linear":
        return linear(inputs, embedding, generator)
    if model == "mlp":
        return mlp(inputs, hidden, embedding, generator)
    if model == "resnet18":
        return ResNet18(*geometry(inputs), embedding, generator)
    if model == "cnn4":
        patch = GaborPatchCNN if start == "gabor" else PatchCNN
        return patch(*geometry(inputs), embedding, generator)
    if inputs % STRIP_COLUMNS:
        raise ConfigError(f"the cnn takes strips of {STRIP_COLUMNS} columns, got {inputs} pixels; use 'cnn4' or 'mlp'.")
    strip = GaborCNN if start == "gabor" else StripCNN
    return strip(inputs // STRIP_COLUMNS, STRIP_COLUMNS, embedding, generator)


def _text(start: StartName, encoder: str, tokens: int, embedding: int, generator: torch.Generator) -> TextEncoder:
    """The pretrained encoder of `data.encoder` with its map; what is random at the start is the map alone."""
    if start not in ("random", "weights"):
        raise ConfigError(
            f"devices.model = 'bert' starts pretrained, got start '{start}'; set devices.start to 'random' (the map) "
            "or 'weights'."
        )
    network = TextEncoder(load_bert(encoder_folder(encoder)), embedding, generator)
    if tokens > network.longest:
        raise ConfigError(
            f"the encoder takes at most {network.longest} tokens a device, got {tokens}; lower data.tokens."
        )
    return network


def _load(network: torch.nn.Module, file: str, m: int) -> None:
    """Put given weights into a network; names and shapes must match."""
    if not Path(file).is_file():
        raise DataError(f"device {m} starts from weights, but the file '{file}' does not exist; set devices.weights.")
    try:
        network.load_state_dict(safetensors.torch.load_file(file))
    except (safetensors.SafetensorError, RuntimeError) as error:
        reason = str(error).replace("\n", " ")
        raise DataError(f"the weights {file} do not fit device {m}'s network ({reason}); give matching ones.") from None


def load_head(weights: Path) -> Head:
    """The head in a finished run's ``weights/``: the refitted one if there is one, else w_0."""
    final = weights / "final.safetensors"
    state = safetensors.torch.load_file(final if final.exists() else weights / "server.safetensors")
    hidden, inputs = state["hidden.weight"].shape
    head = Head(inputs, hidden, len(state["out.weight"]), torch.Generator())
    head.load_state_dict(state)
    return head
