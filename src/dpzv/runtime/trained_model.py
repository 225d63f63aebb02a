"""A trained model in this process: the devices' networks and the final head, to predict with, to save and to load.

A saved model is a folder: ``weights/`` and ``summary.json`` as in a run's folder, and ``model.json``, which says what
is predicted from what. All of it stays with the server, as the final head does.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.durable import readable, write_atomically, write_tensors
from dpzv.errors import ConfigError
from dpzv.models.final_head import load_head
from dpzv.models.losses import predictions, probabilities
from dpzv.runtime.device_networks import Networks, load_weights
from dpzv.runtime.run import run
from dpzv.runtime.server_run import Observer
from dpzv.terms import Task

__all__ = ["TrainedModel", "merged", "refuse_disorder", "train"]


class Form(msgspec.Struct, frozen=True):
    """What is predicted from what: the task, and for each device the number and the type of its columns.

    The names are the format of ``model.json``.
    """

    task: Task
    widths: tuple[int, ...]
    types: tuple[Literal["float32", "uint8", "int32"], ...]


class TrainedModel:
    """Networks and final head of a finished run, at the accelerator `place`.

    `heads` are the files that hold the head, by their names in ``weights/``.
    """

    def __init__(
        self,
        networks: Sequence[torch.nn.Module],
        head: torch.nn.Module,
        heads: Mapping[str, bytes],
        form: Form,
        place: str = "cpu",
    ) -> None:
        self._networks, self._heads, self._form, self._place = list(networks), dict(heads), form, place
        self._head, self._double = head.to(place), False

    def predictions(self, features: Sequence[ArrayLike]) -> NDArray[Any]:
        """[n]: the probability of label 1, the most likely class, or the predicted number."""
        found: NDArray[Any] = predictions(self._form.task, self._outputs(features)).cpu().numpy()
        return found

    def probabilities(self, features: Sequence[ArrayLike]) -> NDArray[Any]:
        """[n, classes]: the probability of every class, in their order."""
        if self._form.task == "regression":
            raise ConfigError("only classes have probabilities, got a model that predicts a number; call predict.")
        found: NDArray[Any] = probabilities(self._form.task, self._outputs(features)).cpu().numpy()
        return found

    def in_double(self) -> TrainedModel:
        """A copy that computes in double precision, for columns that are float32.

        In single precision the last digits of a prediction depend on how many records are predicted together.
        """
        networks = [copy.deepcopy(network).double() for network in self._networks]
        made = TrainedModel(networks, copy.deepcopy(self._head).double(), self._heads, self._form, self._place)
        made._double = True
        return made

    def save(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Put the model into the folder, which must be new or empty."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"a model is saved in a new folder, got {folder}, which has content; name another one.")
        for name, content in self._heads.items():
            write_atomically(folder / "weights" / name, content)
        for m, network in enumerate(self._networks, 1):
            write_tensors(_device_file(folder, m), network.state_dict(), {})
        write_atomically(folder / "summary.json", msgspec.json.encode(summary))
        self.describe(folder)

    def describe(self, folder: Path) -> None:
        """Write ``model.json``, with which a run's folder is a saved model too."""
        write_atomically(folder / "model.json", msgspec.json.encode(self._form))

    @classmethod
    def load(cls, folder: Path, networks: Sequence[torch.nn.Module]) -> tuple[TrainedModel, dict[str, Any]]:
        """The model in the folder and its summary; the weights of `networks` are replaced by the saved ones."""
        with readable(folder, "a saved model", "name a folder that `save`, or `fit` as its `out`, has written"):
            form = msgspec.json.decode((folder / "model.json").read_bytes(), type=Form)
            summary: dict[str, Any] = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict)
            heads, head = _head_files(folder), load_head(folder / "weights")
        if len(networks) != len(form.widths):
            raise ConfigError(
                f"the saved model has {len(form.widths)} devices, got {len(networks)} networks; give one for each."
            )
        for m, network in enumerate(networks, 1):
            load_weights(network, _device_file(folder, m), m)
            network.eval()
        return cls(networks, head, heads, form), summary

    @torch.no_grad()
    def _outputs(self, features: Sequence[ArrayLike]) -> torch.Tensor:
        xs = [torch.from_numpy(x).to(self._place) for x in self._columns(features)]
        if self._double:
            xs = [x.double() for x in xs]
        embeddings = [network(x) for network, x in zip(self._networks, xs, strict=True)]
        output: torch.Tensor = self._head(torch.cat(embeddings, dim=1))
        return output

    def _columns(self, features: Sequence[ArrayLike]) -> list[NDArray[Any]]:
        """Features of new records in the types and widths of those trained on."""
        M = len(self._networks)
        if len(features) != M:
            raise ConfigError(f"expected features for each of the {M} devices, got {len(features)}; give all of them.")
        refuse_disorder(features)
        xs = [_like(x, self._form, m) for m, x in enumerate(features, 1)]
        lengths = [len(x) for x in xs]
        if len(set(lengths)) > 1:
            raise ConfigError(f"expected the same records at every device, got {lengths} rows; align them by record.")
        return xs


def train(
    config: Config, data: Dataset, networks: Networks, path: Path, observe: Observer
) -> tuple[TrainedModel, dict[str, Any]]:
    """Run `config` in the new folder `path`: the trained model and the summary; `observe` may not stop it.

    The number of torch's threads is that of the run while it lasts, and afterwards as it was before.
    """
    made: list[torch.nn.Module] = []

    def kept(*given: Any) -> list[torch.nn.Module]:
        made.extend(networks(*given))
        return made

    threads = torch.get_num_threads()
    try:
        summary = run(config, data, kept, path, observe)
    finally:
        torch.set_num_threads(threads)
    assert summary is not None  # only an observer that stops a run makes one without a summary
    widths, types = ([x.shape[1] for x in data.x_train], [x.dtype.name for x in data.x_train])
    form = msgspec.convert({"task": data.task, "widths": widths, "types": types}, Form)
    head = load_head(path / "weights")
    return TrainedModel(made, head, _head_files(path), form, config.runtime.accelerator), summary


def merged(tree: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration tree with `settings` in it, which are keyed as on the command line (``train.rounds``)."""
    out = dict(tree)
    for key, value in settings.items():
        section, _, field = key.partition(".")
        plain = value.item() if isinstance(value, np.generic) else value
        out = configuration.merge(out, {section: {field: plain}})
    return out


def refuse_disorder(parts: Sequence[Any]) -> None:
    """Raise if pandas objects among the parts have different indices: as arrays they would be joined by position."""
    indices = [part.index for part in parts if hasattr(getattr(part, "index", None), "equals")]
    if any(not index.equals(indices[0]) for index in indices):
        raise ConfigError(
            "frames and labels of the same records must have the same index in the same order, got different ones; "
            "join them first, for example with dpzv.sklearn.join_parties."
        )


def _device_file(folder: Path, m: int) -> Path:
    return folder / "weights" / f"device-{m}.safetensors"


def _head_files(folder: Path) -> dict[str, bytes]:
    """The files in ``weights/`` that are not a device's."""
    files = sorted((folder / "weights").glob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files if not file.name.startswith("device-")}


def _like(x: ArrayLike, form: Form, m: int) -> NDArray[Any]:
    """`x` in the type and width of the array that device m was trained on."""
    width, kind = form.widths[m - 1], np.dtype(form.types[m - 1])
    try:
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite and is refused below
            array = np.asarray(x).astype(kind, order="C", casting="same_kind")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"features of device {m} must be numbers that fit {kind} as in training, but numpy refuses them "
            f"({error}); convert them."
        ) from error
    if array.ndim != 2 or array.shape[1] != width:
        raise ConfigError(
            f"features of device {m} must have shape [records, {width}], got {list(array.shape)}; give the "
            "columns of the training records."
        )
    if not np.isfinite(array).all():
        raise ConfigError(f"features of device {m} must be finite, got NaN or infinite values; fill or drop them.")
    return array
