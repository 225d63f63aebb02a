"""The devices' networks of a configuration, at their start; and the final head of a finished run."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
import torch

from dpzv.config import Config, per_device
from dpzv.data.dataset import Dataset
from dpzv.errors import ConfigError, DataError
from dpzv.models.gabor import GaborCNN
from dpzv.models.head import Head
from dpzv.models.networks import StripCNN, linear, mlp
from dpzv.models.starts import dp_pca_start, pca_start, set_linear
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan, start_event
from dpzv.rng import torch_generator
from dpzv.terms import StartName
from dpzv.validate import one_of

__all__ = ["load_head", "make_networks"]

STRIP_COLUMNS = 28  # the cnn's strips are rows of 28 pixels, as in mnist
C_START = 1.0  # the public constant appended to each row before dp-pca
FLOOR = 1e-3  # public floor of dp-pca's eigenvalues, in units of one record's squared feature


def make_networks(config: Config, data: Dataset, plan: PrivacyPlan, noise: NoiseSource) -> list[torch.nn.Module]:
    """One network a device, with its start; a dp-pca start uses the plan's noise."""
    M, devices = len(data.x_train), config.devices
    models = per_device("devices.model", devices.model, M)
    starts: tuple[StartName, ...] = per_device("devices.start", devices.start, M)
    widths = per_device("devices.embedding", devices.embedding, M)
    hiddens = per_device("devices.hidden", devices.hidden, M)
    radii = per_device("devices.R", devices.R, M)
    files = per_device("devices.weights", devices.weights, M)
    networks = []
    for i, (model, start, x) in enumerate(zip(models, starts, data.x_train, strict=True)):
        generator = torch_generator(config.train.seed, "start", i + 1)
        network = _network(model, start, x.shape[1], hiddens[i], widths[i], generator)
        if start in ("pca", "dp-pca"):
            if not isinstance(network, torch.nn.Linear):
                raise ConfigError(f"start '{start}' needs devices.model = 'linear', got '{model}' at device {i + 1}.")
            if start == "pca":
                set_linear(network, pca_start(x, widths[i], floor=FLOOR))
            else:
                scale = start_event(plan, i).noise_multiplier * (radii[i] ** 2 + C_START**2)
                made = dp_pca_start(
                    x,
                    widths[i],
                    R=radii[i],
                    c=C_START,
                    scale=scale,
                    gaussian=lambda shape, m=i + 1: noise.gaussian(shape, "start", m),  # type: ignore[misc]
                    floor=max(FLOOR, 2 * scale * x.shape[1] ** 0.5 / len(x)),  # smaller ones are noise
                )
                set_linear(network, made)
        elif start == "weights":
            _load(network, files[i], i + 1)
        networks.append(network)
    return networks


def _network(
    model: str, start: StartName, inputs: int, hidden: int, embedding: int, generator: torch.Generator
) -> torch.nn.Module:
    one_of("devices.model", model, ("linear", "mlp", "cnn"))
    if start == "gabor" and model != "cnn":
        raise ConfigError(f"start 'gabor' needs devices.model = 'cnn', got '{model}'; it is a bank of image filters.")
    if model == "linear":
        return linear(inputs, embedding, generator)
    if model == "mlp":
        return mlp(inputs, hidden, embedding, generator)
    if inputs % STRIP_COLUMNS:
        raise ConfigError(f"the cnn takes strips of {STRIP_COLUMNS} columns, got {inputs} pixels; use 'mlp'.")
    kind = GaborCNN if start == "gabor" else StripCNN
    return kind(inputs // STRIP_COLUMNS, STRIP_COLUMNS, embedding, generator)


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
