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
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.data.schedule import public_split
from dpzv.errors import ConfigError
from dpzv.models.final_head import load_head
from dpzv.models.losses import predictions
from dpzv.runtime.journal import Snapshot
from dpzv.runtime.run import run
from dpzv.terms import Task

__all__ = ["Federation"]

HELD_OUT = 10
"""One record in this many is held out for evaluation."""

SPEEDS = ("devices.bandwidth", "devices.compute", "devices.latency")
"""The keys of the section `devices` that `fit` accepts; the others describe networks, which are given here."""

LARGE = 50_000
"""Weights beyond which several threads surely help a network."""


class Federation:
    """Devices with their networks and features, a server with the labels.

    `networks[m]` maps features [n, d_m] to embeddings [n, k_m], treats every record by itself, and starts at
    weights that say nothing about these records. `features[m]` is [D, d_m]: bytes stay bytes, all other
    numbers become float32. `labels` is [D]: 0 and 1 for `binary`, 0 .. n_classes-1 for `classes` (`n_classes`
    is public, so it is never counted from the labels), any number for `regression`. A public tenth of the
    records is held out for evaluation.
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
        _refuse_shared(networks)
        # all records are checked before they are split, so that messages count them as the caller does
        whole = Records(features, labels)
        data = from_arrays(whole, whole, task=task, n_classes=n_classes, fingerprint="all")
        D = len(data.y_train)
        if D < HELD_OUT:
            raise ConfigError(f"expected at least {HELD_OUT} records, since a tenth is held out, got {D}; give more.")
        train, test = public_split(D, D // HELD_OUT, "holdout")  # the stream's name and this order are a format
        self._networks = list(networks)
        self._data: Dataset = from_arrays(
            Records([x[train] for x in data.x_train], data.y_train[train]),
            Records([x[test] for x in data.x_train], data.y_train[test]),
            task=task,
            n_classes=n_classes,
        )
        self._begun = False
        self._summary: dict[str, Any] | None = None
        self._head: torch.nn.Module | None = None
        self._accelerator = "cpu"

    def fit(self, settings: Mapping[str, Any], out: str | Path | None = None) -> Federation:
        """Train under `settings`, keyed as on the command line (``{"train.rounds": 400}``).

        The given networks are trained in place and left in evaluation mode. Batch normalisation works by the
        running statistics it comes with, which are never updated. The run folder is kept if `out` names one.
        A federation is fitted once: a second run would start from weights that have used up a budget already.
        """
        if self._begun:
            raise ConfigError(
                "a federation is fitted once, since the budgets of two runs over the same records add up, got a "
                "second fit; make a new one with untrained networks."
            )
        config = configuration.parse(_tree(settings, self._networks))

        def observe(snapshot: Snapshot) -> bool:
            self._begun = True
            return True

        with tempfile.TemporaryDirectory() as scratch:
            path = Path(out) if out is not None else Path(scratch) / "run"
            self._summary = run(config, self._data, lambda *_: self._networks, path, observe)
            self._accelerator = config.runtime.accelerator
            self._head = load_head(path / "weights").to(self._accelerator)
        return self

    def predict(self, features: Sequence[ArrayLike]) -> NDArray[Any]:
        """Predictions for new records [n]: probabilities, classes or numbers. They stay with the server."""
        if self._head is None:
            raise ConfigError("predict needs a trained federation, got one that was not fitted; call fit first.")
        xs = self._columns(features)
        with torch.no_grad():
            embeddings = [network(x) for network, x in zip(self._networks, xs, strict=True)]
            output = self._head(torch.cat(embeddings, dim=1))
        result: NDArray[Any] = predictions(self._data.task, output).cpu().numpy()
        return result

    def summary(self) -> dict[str, Any]:
        """The figures of the run's `summary.json`."""
        if self._summary is None:
            raise ConfigError("summary needs a trained federation, got one that was not fitted; call fit first.")
        return self._summary

    def _columns(self, features: Sequence[ArrayLike]) -> list[torch.Tensor]:
        """Features of new records in the types and widths of those trained on, on the accelerator."""
        M = len(self._networks)
        if len(features) != M:
            raise ConfigError(f"expected features for each of the {M} devices, got {len(features)}; give all of them.")
        xs = [_like(x, self._data.x_train[i], m=i + 1) for i, x in enumerate(features)]
        lengths = [len(x) for x in xs]
        if len(set(lengths)) > 1:
            raise ConfigError(f"expected the same records at every device, got {lengths} rows; align them by record.")
        return [torch.from_numpy(x).to(self._accelerator) for x in xs]


def _like(x: ArrayLike, trained: NDArray[Any], *, m: int) -> NDArray[Any]:
    """`x` in the type and width of the array that device m was trained on."""
    try:
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite and is refused below
            array = np.asarray(x).astype(trained.dtype, order="C", casting="same_kind")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"features of device {m} must be numbers that fit {trained.dtype} as in training, but numpy refuses them "
            f"({error}); convert them."
        ) from error
    if array.ndim != 2 or array.shape[1] != trained.shape[1]:
        raise ConfigError(
            f"features of device {m} must have shape [records, {trained.shape[1]}], got {list(array.shape)}; give the "
            "columns of the training records."
        )
    if not np.isfinite(array).all():
        raise ConfigError(f"features of device {m} must be finite, got NaN or infinite values; fill or drop them.")
    return array


def _refuse_shared(networks: Sequence[torch.nn.Module]) -> None:
    """Raise if two devices share a parameter, since the releases of both would move it."""
    owner: dict[torch.nn.Parameter, int] = {}
    for m, network in enumerate(networks, 1):
        for parameter in network.parameters():
            if owner.setdefault(parameter, m) != m:
                raise ConfigError(
                    f"every device needs weights of its own, got a tensor that devices {owner[parameter]} and {m} "
                    "share; give each its own copy."
                )


def _tree(settings: Mapping[str, Any], networks: Sequence[torch.nn.Module]) -> dict[str, Any]:
    """The configuration tree of a run over given networks and arrays; large networks get all threads of torch."""
    tree: dict[str, Any] = {"recipe": "python", "data": {"name": "arrays"}, "devices": {"start": "weights"}}
    if any(sum(w.numel() for w in network.parameters()) > LARGE for network in networks):
        tree["runtime"] = {"threads": torch.get_num_threads()}
    refused = set(configuration.keys()) - set(SPEEDS)
    for key, value in settings.items():
        section, _, field = key.partition(".")
        if section in ("data", "devices") and key in refused:
            raise ConfigError(f"fit uses the networks and arrays as given, got the key '{key}'; leave it out.")
        plain = value.item() if isinstance(value, np.generic) else value
        tree = configuration.merge(tree, {section: {field: plain}})
    return tree
