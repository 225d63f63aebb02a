"""Where torch computes in a run, and with how many threads."""

from __future__ import annotations

import torch

from dpzv.config import Config
from dpzv.errors import ConfigError
from dpzv.models import MODELS

__all__ = ["accelerator_of", "threads_of"]


def accelerator_of(config: Config) -> str:
    """The run's accelerator, which must be there; also prepares torch for it and sets the number of threads."""
    name = config.runtime.accelerator
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("runtime.accelerator is 'cuda', but torch finds no CUDA device; use 'cpu'.")
    if name == "cuda":
        # torch rounds the inputs of convolutions to 11 bits by default; the difference of two nearly equal
        # losses needs all 24
        torch.backends.cudnn.allow_tf32 = False
    if threads := threads_of(config):
        torch.set_num_threads(threads)
    return name


def threads_of(config: Config) -> int:
    """The threads of a run; 0 stands for as many as there are cores."""
    models = config.devices.model if isinstance(config.devices.model, tuple) else (config.devices.model,)
    return config.runtime.threads or (1 if all(MODELS[model].small for model in models) else 0)
