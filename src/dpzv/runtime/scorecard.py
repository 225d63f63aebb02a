"""The weights of a trained linear device as a scorecard: what each value of each raw column adds to the output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors.numpy import load_file

from dpzv.data.columns import Column, Part, parts
from dpzv.durable import readable
from dpzv.errors import ConfigError, DataError

__all__ = ["Scorecard", "scorecard"]


class ScoreLine(Struct, frozen=True):
    """One part of a raw column: it adds `weights`, one for each output, if it holds (or for every unit of the value).

    `effect` is the most by which it can move an output.
    """

    column: str
    part: str
    weights: tuple[float, ...]
    effect: float


class Scorecard(Struct, frozen=True):
    """The outputs of device m for a record: `intercept` plus the weights of all lines that apply to the record.

    Lines are sorted by their effect, the largest first. A missing value of a range counts as the middle of the range.
    """

    device: int
    intercept: tuple[float, ...]
    lines: tuple[ScoreLine, ...]


def scorecard(weights: Path, m: int, columns: Sequence[Column]) -> Scorecard:
    """The scorecard of device m, from the file of its weights and the public encoding of its columns.

    Without columns (data that are numbers already) every line stands for one number of a record.
    """
    weight, bias = _effective(weights)
    named = parts(columns) if columns else [Part(f"number {i}", "a unit") for i in range(1, weight.shape[1] + 1)]
    if len(named) != weight.shape[1]:
        raise DataError(
            f"{weights} holds weights of {weight.shape[1]} encoded columns, but the columns of device {m} are encoded "
            f"as {len(named)}; give the folder with the columns that it was trained on."
        )
    lines = []
    for i, part in enumerate(named):
        effect = part.span * float(np.abs(weight[:, i]).max())
        lines.append(ScoreLine(part.name, part.what, tuple((part.slope * weight[:, i]).tolist()), effect))
    intercept = bias + weight @ np.array([part.shift for part in named])
    return Scorecard(m, tuple(intercept.tolist()), tuple(sorted(lines, key=lambda line: -line.effect)))


def _effective(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The weight [k, d] and bias [k] of a linear device on its encoded columns, with a whitening undone."""
    with readable(path, "a file of weights", "put a copy of it back"):
        state = {name: tensor.astype(np.float64) for name, tensor in load_file(path).items()}
    if set(state) == {"weight", "bias"} and state["weight"].ndim == 2:
        return state["weight"], state["bias"]
    if set(state) == {"linear.weight", "linear.bias", "mean", "matrix"}:
        weight = state["linear.weight"] @ state["matrix"]
        return weight, state["linear.bias"] - weight @ state["mean"]
    raise ConfigError(
        f"only a linear device has weights that can be read by column, got the tensors {', '.join(sorted(state)[:4])} "
        f"in {path}; train with devices.model = 'linear'."
    )
