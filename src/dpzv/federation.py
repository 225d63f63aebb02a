"""The Python interface: a federation from any modules and arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dpzv import config as configuration
from dpzv.data.dataset import Dataset, from_arrays
from dpzv.data.schedule import public_order
from dpzv.errors import ConfigError
from dpzv.models.losses import predictions
from dpzv.runtime.networks import load_head
from dpzv.runtime.run import run
from dpzv.terms import Task

__all__ = ["Federation"]


class Federation:
    """Devices with their networks and features, a server with the labels.

    `networks[m]` maps features [n, d_m] to embeddings [n, k_m] and must treat every record by itself;
    `features[m]` is [D, d_m]; `labels` is [D]. A public tenth of the records is held out for evaluation.
    """

    def __init__(
        self,
        networks: Sequence[torch.nn.Module],
        features: Sequence[ArrayLike],
        labels: ArrayLike,
        *,
        task: Task,
        n_classes: int = 0,
    ) -> None:
        if len(networks) != len(features):
            raise ConfigError(
                f"every device needs a network and features, got {len(networks)} networks and "
                f"{len(features)} feature arrays; give as many of each."
            )
        xs, y = [np.asarray(x) for x in features], np.asarray(labels)
        lengths = {len(x) for x in xs} | {len(y)}
        if len(lengths) != 1:
            raise ConfigError(
                f"all devices and the labels need the same records, got lengths "
                f"{[len(x) for x in xs]} and {len(y)} labels; align them by record id."
            )
        order = public_order(len(y), "holdout")
        test, train = order[: len(y) // 10], order[len(y) // 10 :]
        self._networks = list(networks)
        self._data: Dataset = from_arrays(
            [x[train] for x in xs], y[train], [x[test] for x in xs], y[test], task=task, n_classes=n_classes
        )
        self._summary: dict[str, Any] | None = None
        self._head: torch.nn.Module | None = None

    def fit(self, settings: Mapping[str, Any], out: str | Path | None = None) -> Federation:
        """Train under `settings`, keyed as on the command line (``{"train.rounds": 400}``).

        Each device's start is its network as given. The run folder is kept if `out` names one.
        """
        tree: dict[str, Any] = {
            "recipe": "python",
            "data": {"name": "arrays"},
            "devices": {"start": "weights"},
        }
        for key, value in settings.items():
            section, _, field = key.partition(".")
            tree = configuration.merge(tree, {section: {field: value}})
        config = configuration.parse(tree)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(out) if out is not None else Path(scratch) / "run"
            self._summary = run(config, self._data, lambda *_: self._networks, path, lambda snapshot: True)
            self._head = load_head(path / "weights" / "server.safetensors")
        return self

    def predict(self, features: Sequence[ArrayLike]) -> NDArray[Any]:
        """Predictions for new records [n]: probabilities, classes or numbers. They stay with the server."""
        if self._head is None:
            raise ConfigError("predict needs a trained federation, got one that was not fitted; call fit first.")
        with torch.no_grad():
            embeddings = [
                network(torch.as_tensor(np.asarray(x))) for network, x in zip(self._networks, features, strict=True)
            ]
            output = self._head(torch.cat(embeddings, dim=1))
        result: NDArray[Any] = predictions(self._data.task, output).numpy()
        return result

    def summary(self) -> dict[str, Any]:
        """The run's `summary.json`."""
        if self._summary is None:
            raise ConfigError("summary needs a trained federation, got one that was not fitted; call fit first.")
        return self._summary
