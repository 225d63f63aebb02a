"""The Python interface: a federation from any modules and arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike, NDArray

from dpzv import config as configuration
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.data.schedule import public_split
from dpzv.errors import ConfigError
from dpzv.runtime.journal import Snapshot
from dpzv.runtime.progress import showing
from dpzv.runtime.trained_model import TrainedModel, merged, refuse_disorder, train
from dpzv.terms import Task

__all__ = ["Federation"]

Watcher = Callable[[Snapshot], object]
"""Called after every round with how far the run is; what it returns is ignored."""

HELD_OUT = 10
"""One record in this many is held out for evaluation."""

SPEEDS = ("devices.bandwidth", "devices.compute", "devices.latency")
"""The keys of the section `devices` that `fit` accepts; the others describe networks, which the caller has given."""

LARGE = 50_000
"""With more weights a network surely gains by several threads."""


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
        refuse_disorder([*features, labels])
        # all records are checked before they are split, so that messages count them as the caller does
        whole = Records(features, labels)
        data = from_arrays(whole, whole, task=task, n_classes=n_classes, fingerprint="all")
        D = len(data.y_train)
        if D < HELD_OUT:
            raise ConfigError(f"expected at least {HELD_OUT} records, since a tenth is held out, got {D}; give more.")
        train, test = public_split(D, D // HELD_OUT, "holdout")  # the stream's name and this order are a format
        self._networks = list(networks)
        self._data: Dataset | None = from_arrays(
            Records([x[train] for x in data.x_train], data.y_train[train]),
            Records([x[test] for x in data.x_train], data.y_train[test]),
            task=task,
            n_classes=n_classes,
        )
        self._begun = False
        self._model: TrainedModel | None = None
        self._summary: dict[str, Any] = {}
        self._epsilon_spent = 0.0

    def fit(
        self, settings: Mapping[str, Any], out: str | Path | None = None, progress: bool | Watcher = False
    ) -> Federation:
        """Train under `settings`, keyed as on the command line (``{"train.rounds": 400}``).

        The given networks are trained in place and left in evaluation mode. Batch normalisation works by the
        running statistics it comes with, which are never updated. The run folder is kept if `out` names one.
        `progress` shows a bar on standard error, or is called after every round with a `Snapshot`.
        A federation is fitted once: a second run would start from weights that have used up a budget already.
        """
        if self._data is None:
            raise ConfigError("a loaded federation only predicts, since it has no records, got a fit; make a new one.")
        if self._begun:
            raise ConfigError(
                "a federation is fitted once, since the budgets of two runs over the same records add up, got a "
                "second fit; make a new one with untrained networks."
            )
        config = configuration.parse(_tree(settings, self._networks))
        with tempfile.TemporaryDirectory() as scratch, showing(quiet=progress is not True) as bar:
            path = Path(out) if out is not None else Path(scratch) / "run"
            watch = progress if callable(progress) else bar

            def observe(snapshot: Snapshot) -> bool:
                self._begun, self._epsilon_spent = True, snapshot.epsilon_spent
                watch(snapshot)
                return True

            self._model, self._summary = train(config, self._data, lambda *_: self._networks, path, observe)
            self._model.describe(path)
        self._epsilon_spent = self._summary["epsilon_spent"]
        return self

    def predict(self, features: Sequence[ArrayLike]) -> NDArray[Any]:
        """Predictions for new records [n]: probabilities of label 1, classes or numbers. They stay with the server."""
        return self._fitted("predict").predictions(features)

    def predict_proba(self, features: Sequence[ArrayLike]) -> NDArray[Any]:
        """The probability of every class for new records [n, classes], in the order of their numbers."""
        return self._fitted("predict_proba").probabilities(features)

    def summary(self) -> dict[str, Any]:
        """The figures of the run's `summary.json`."""
        self._fitted("summary")
        return self._summary

    @property
    def epsilon_spent(self) -> float:
        """An estimate of what was spent until the last evaluation, never above the claim; kept if `fit` was stopped."""
        return self._epsilon_spent

    def save(self, folder: str | Path) -> None:
        """Put weights, final head and summary into a new folder; no file of it may leave the server."""
        self._fitted("save").save(Path(folder), self._summary)

    @classmethod
    def load(cls, folder: str | Path, networks: Sequence[torch.nn.Module]) -> Federation:
        """The federation that `save` put into the folder, or `fit` into its `out`; it predicts, but cannot be fitted.

        `networks` are modules like those that were trained; their weights are replaced. Nothing is unpickled.
        """
        self = cls.__new__(cls)
        self._networks, self._data, self._begun = list(networks), None, True
        self._model, self._summary = TrainedModel.load(Path(folder), self._networks)
        self._epsilon_spent = self._summary["epsilon_spent"]
        return self

    def __repr__(self) -> str:
        state = "not fitted"
        if self._model is not None:
            guarantee = "yes" if self._summary["guarantee"] else "no"
            state = (
                f"fitted in {self._summary['rounds']} rounds, epsilon {self._summary['epsilon']}, guarantee {guarantee}"
            )
        elif self._begun:
            state = f"begun, epsilon about {self._epsilon_spent:.3g} spent"
        data = self._data
        records = "" if data is None else f"task {data.task}, {len(data.y_train)} training records, "
        return f"<Federation of {len(self._networks)} devices, {records}{state}>"

    def _fitted(self, what: str) -> TrainedModel:
        if self._model is None:
            raise ConfigError(f"{what} needs a trained federation, got one that was not fitted; call fit first.")
        return self._model


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
    for key in settings:
        if key.partition(".")[0] in ("data", "devices") and key in refused:
            raise ConfigError(f"fit uses the networks and arrays as given, got the key '{key}'; leave it out.")
    return merged(tree, settings)
