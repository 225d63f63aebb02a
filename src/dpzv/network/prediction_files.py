"""The files of a prediction: a line for each record that was predicted, and the ids that a device does not know."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.data.party_records import LabelSettings, in_units
from dpzv.durable import replacing
from dpzv.models.losses import predictions

__all__ = ["write_predictions", "write_unknown"]

AT_ONCE = 65_536
"""Lines that are made at a time, so that millions need little memory."""


def write_predictions(path: Path, settings: LabelSettings, ids: Iterable[str], output: torch.Tensor) -> None:
    """Write a line for each of the `ids`, whose outputs of the head are `output` [n, outputs].

    The column `prediction` has the number of a regression, the most likely of several classes, or the probability of
    the second of two. Then come the likelier class of two, or the probability of each of several classes.
    """
    names = iter(ids)
    with _written(path) as writer:
        writer.writerow(_columns(settings, output[:0]))
        for start in range(0, len(output), AT_ONCE):
            columns = _columns(settings, output[start : start + AT_ONCE], islice(names, AT_ONCE))
            writer.writerows(zip(*columns.values(), strict=True))


def write_unknown(path: Path, ids: Sequence[str], devices: Sequence[str], unknown: NDArray[np.bool_]) -> Path | None:
    """Name the ids that a device has no record of in a file beside the predictions at `path`, and return that file.

    `unknown` [n, M] says which device lacks which record. Where every device has all records there is no such file,
    and one that an earlier prediction left is removed.
    """
    file = path.with_name(f"{path.stem}.unknown.csv")
    places = np.flatnonzero(unknown.any(axis=1))
    if not len(places):
        file.unlink(missing_ok=True)
        return None
    with _written(file) as writer:
        writer.writerow(("id", "unknown to"))
        for place in places.tolist():
            lacking = (name for name, lacks in zip(devices, unknown[place], strict=True) if lacks)
            writer.writerow((ids[place], " ".join(lacking)))
    return file


def _columns(settings: LabelSettings, output: torch.Tensor, ids: Iterable[str] = ()) -> dict[str, Iterable[object]]:
    """The columns of some lines, by their names."""
    classes, task = settings.classes or (), settings.task
    values = predictions(task, output).cpu().numpy()
    columns: dict[str, Iterable[object]] = {"id": ids}
    if task == "regression":
        columns["prediction"] = in_units(settings, values)
    elif task == "binary":
        columns["prediction"] = values
        columns["class"] = [classes[int(logit > 0)] for logit in output[:, 0].tolist()]
    else:
        columns["prediction"] = [classes[int(place)] for place in values]
        found = output.softmax(dim=1).cpu().numpy()
        columns |= {f"probability of {name}": found[:, place] for place, name in enumerate(classes)}
    return columns


@contextmanager
def _written(path: Path) -> Iterator[Any]:
    """A writer of a CSV file that takes the place of `path` when the block ends."""
    with replacing(path) as new, new.open("w", encoding="utf-8", newline="") as file:
        yield csv.writer(file, lineterminator="\n")
