"""A vertically split data set: the same records, different columns per device, labels at the server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzv.data.schedule import holdout
from dpzv.errors import ConfigError
from dpzv.privacy.record_names import UNNAMED, RecordNames
from dpzv.terms import Task
from dpzv.validate import one_of

__all__ = [
    "Dataset",
    "Records",
    "ServerRecords",
    "check",
    "fingerprint_of",
    "from_arrays",
    "held_out",
    "outputs_of",
    "part_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Training and test records, split by column between devices.

    x_train, x_test: one array per device, [D, d_m] and [D_test, d_m]: float32, or uint8 (pixels), or int32 (token
    ids, from 0).
    y_train, y_test: int64 for `binary` (0, 1) and `classes` (0 .. n_classes-1), float32 for `regression`.
    n_classes: 2 for `binary`, 0 for `regression`; a public constant, never counted from labels.
    fingerprint: identifies the training records in any encoding, so that a run goes on only with the records it began
    with.
    source: one sentence on where the records come from.
    names: of the training records, so that runs can be compared by the records they share.
    unit: what a 1 in the labels of a regression stands for in the label's own units.
    """

    name: str
    task: Task
    n_classes: int
    devices: tuple[str, ...]
    x_train: tuple[NDArray[Any], ...]
    y_train: NDArray[Any]
    x_test: tuple[NDArray[Any], ...]
    y_test: NDArray[Any]
    fingerprint: str
    source: str
    names: RecordNames = UNNAMED
    unit: float = 1.0

    def server_records(self) -> ServerRecords:
        """What the server knows about these records."""
        outputs, known = outputs_of(self.task, self.n_classes), (self.fingerprint, self.names, self.unit)
        return ServerRecords(self.name, self.task, outputs, self.y_train, self.y_test, *known)


@dataclass(frozen=True, slots=True, eq=False)
class ServerRecords:
    """What the server knows about the records: their labels, and what is predicted.

    `outputs` counts the numbers that a head gives for a record; `fingerprint` stands for all training records together,
    and `names` names each of them. `unit` is what a 1 in the labels stands for in the label's own units.
    """

    name: str
    task: Task
    outputs: int
    y_train: NDArray[Any]
    y_test: NDArray[Any]
    fingerprint: str
    names: RecordNames = UNNAMED
    unit: float = 1.0


def outputs_of(task: Task, n_classes: int) -> int:
    """How many numbers a head gives for a record: one for each of several classes, else a single one."""
    return n_classes if task == "classes" else 1


def fingerprint_of(parts: Iterable[bytes | NDArray[Any]]) -> str:
    """Sha256 in hex over the parts in order; an array counts with its dtype, shape and raw bytes.

    A ledger keeps it, so the parts that callers give and their order are a format.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        else:
            digest.update(f"bytes{len(part)}".encode())
            digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Some records as they are given: one feature array [n, d_m] per device, and the labels [n]."""

    x: Sequence[ArrayLike]
    y: ArrayLike


def from_arrays(
    train: Records,
    test: Records,
    *,
    task: Task,
    n_classes: int = 0,
    name: str = "arrays",
    devices: tuple[str, ...] = (),
    fingerprint: str = "",
) -> Dataset:
    """A checked `Dataset` from arrays.

    uint8 and int32 features stay as they are, all others become float32; `n_classes` is needed for `classes` only.
    By default the devices are called ``device-1``, ..., and the fingerprint is a hash of the training arrays.
    """
    one_of("task", task, get_args(Task))
    trains = tuple(_features(x, f"device {m}") for m, x in enumerate(train.x, 1))
    tests = tuple(_features(x, f"device {m}, test") for m, x in enumerate(test.x, 1))
    labels, test_labels = _labels(train.y, task, "y_train"), _labels(test.y, task, "y_test")
    fingerprint = fingerprint or fingerprint_of([np.arange(np.size(labels)), labels, *trains])
    dataset = Dataset(
        name=name,
        task=task,
        n_classes={"binary": 2, "regression": 0}.get(task, n_classes),
        devices=devices or tuple(f"device-{m}" for m in range(1, len(trains) + 1)),
        x_train=trains,
        y_train=labels,
        x_test=tests,
        y_test=test_labels,
        fingerprint=fingerprint,
        names=RecordNames.of_rows(fingerprint, np.arange(np.size(labels))),
        source="Arrays given by the caller.",
    )
    check(dataset)
    return dataset


def check(dataset: Dataset) -> None:
    """Refuse, with one sentence, a data set that cannot be trained on."""
    M = len(dataset.devices)
    if M == 0 or len(dataset.x_train) != M or len(dataset.x_test) != M:
        raise ConfigError(
            f"expected one training and one test array for each of the {M} devices, got "
            f"{len(dataset.x_train)} and {len(dataset.x_test)}; give every device its columns."
        )
    _check_part("training", dataset.x_train, dataset.y_train, dataset)
    _check_part("test", dataset.x_test, dataset.y_test, dataset)
    for m, (train, test) in enumerate(zip(dataset.x_train, dataset.x_test, strict=True), 1):
        if train.shape[1] != test.shape[1]:
            raise ConfigError(
                f"device {m} has {train.shape[1]} columns in training and {test.shape[1]} in test records; "
                "give both the same columns."
            )
    if dataset.task != "regression" and bool(np.all(dataset.y_train == dataset.y_train[0])):
        raise ConfigError(
            f"expected training labels of at least two classes, got {len(dataset.y_train)} labels that are "
            f"all {dataset.y_train[0]}; add records of another class."
        )


def part_of(dataset: Dataset, devices: Sequence[int], share: float) -> Dataset:
    """What [data] of a configuration leaves of `dataset`: the columns of `devices`, if any are named, and a holdout."""
    dataset = of_devices(dataset, devices) if devices else dataset
    return held_out(dataset, share) if share else dataset


def of_devices(dataset: Dataset, numbers: Sequence[int]) -> Dataset:
    """`dataset` with the columns of these devices alone, in this order; they are numbered anew from 1.

    The records are the same, so their fingerprint and names are too.
    """
    M = len(dataset.devices)
    if len(set(numbers)) < len(numbers) or not all(1 <= m <= M for m in numbers):
        raise ConfigError(
            f"data.devices must name devices 1 to {M} of '{dataset.name}', each at most once, got {list(numbers)}; "
            "change data.devices."
        )
    return replace(
        dataset,
        devices=tuple(dataset.devices[m - 1] for m in numbers),
        x_train=tuple(dataset.x_train[m - 1] for m in numbers),
        x_test=tuple(dataset.x_test[m - 1] for m in numbers),
    )


def held_out(dataset: Dataset, share: float) -> Dataset:
    """`dataset` with this `share` of its training records, publicly chosen, in place of the test records.

    Settings are chosen with it, so that no test record is looked at. Its fingerprint is that of the smaller training
    set, and its records keep their names.
    """
    D = len(dataset.y_train)
    train, test = holdout(D, share)
    out = replace(
        dataset,
        name=f"{dataset.name}-holdout",
        x_train=tuple(x[train] for x in dataset.x_train),
        y_train=dataset.y_train[train],
        x_test=tuple(x[test] for x in dataset.x_train),
        y_test=dataset.y_train[test],
        fingerprint=fingerprint_of([dataset.fingerprint.encode(), train]),
        names=RecordNames.of_rows(dataset.fingerprint, train),
        source=f"{dataset.source} Here {len(test)} of its {D} training records are held out for test.",
    )
    check(out)
    return out


def _features(x: ArrayLike, where: str) -> NDArray[Any]:
    try:
        array = np.asarray(x)
        if array.dtype in (np.uint8, np.int32):
            return np.ascontiguousarray(array)
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite; `check` refuses it
            return np.ascontiguousarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"features of {where} must be numbers in a rectangular array, but numpy refuses them ({error}); "
            "encode text and fill gaps first."
        ) from error


def _labels(y: ArrayLike, task: Task, where: str) -> NDArray[Any]:
    array = np.asarray(y)
    if task == "regression":
        if array.dtype.kind not in "fiub":
            raise ConfigError(f"{where} must be numbers for a regression, got {array.dtype}; convert them.")
        return array.astype(np.float32)
    whole_floats = array.dtype.kind == "f" and bool(np.all(array == np.floor(array)))
    if array.dtype.kind not in "iub" and not whole_floats:
        raise ConfigError(
            f"{where} must be whole numbers from 0 for task '{task}', got {array.dtype} with other values; "
            "number the classes from 0 or set the task to 'regression'."
        )
    return array.astype(np.int64)


def _check_part(part: str, xs: tuple[NDArray[Any], ...], y: NDArray[Any], dataset: Dataset) -> None:
    if y.ndim != 1:
        raise ConfigError(f"{part} labels must be one value a record, got shape {y.shape}; flatten them.")
    for m, x in enumerate(xs, 1):
        if x.ndim != 2 or x.shape[1] == 0:
            raise ConfigError(
                f"{part} features of device {m} must have shape [records, columns], got {list(x.shape)}; reshape them."
            )
        if x.dtype not in (np.float32, np.uint8, np.int32):
            raise ConfigError(
                f"{part} features of device {m} must be float32, uint8 or int32, got {x.dtype}; convert them."
            )
        if x.dtype == np.int32 and x.size and x.min() < 0:
            raise ConfigError(
                f"{part} features of device {m} are int32, thus token ids from 0, got {x.min()}; "
                "convert other numbers to float32."
            )
    lengths = [len(x) for x in xs]
    if any(length != len(y) for length in lengths):
        raise ConfigError(
            f"expected the same {part} records at every device, got {len(y)} labels and "
            f"{', '.join(f'{n} rows at device {m}' for m, n in enumerate(lengths, 1))}; align them by record."
        )
    if len(y) == 0:
        raise ConfigError(f"expected at least one {part} record, got none; give {part} records.")
    for m, x in enumerate(xs, 1):
        _check_finite(part, m, x)
    _check_labels(part, y, dataset)


def _check_finite(part: str, m: int, x: NDArray[Any]) -> None:
    if x.dtype != np.float32 or np.isfinite(x).all():
        return
    bad = (~np.isfinite(x)).sum(axis=0)
    column = int(np.flatnonzero(bad)[0])
    others = int(np.count_nonzero(bad)) - 1
    more = f" (and {others} more columns have some)" if others else ""
    raise ConfigError(
        f"{part} features must be finite, got {int(bad[column])} NaN or infinite values in column {column} "
        f"(counted from 0) of device {m}{more}; fill or drop them."
    )


def _check_labels(part: str, y: NDArray[Any], dataset: Dataset) -> None:
    if dataset.task == "regression":
        if y.dtype != np.float32 or not np.isfinite(y).all():
            raise ConfigError(
                f"{part} labels of a regression must be finite float32, got other values; fill or drop them."
            )
        return
    if dataset.n_classes < 2 or (dataset.task == "binary" and dataset.n_classes != 2):
        raise ConfigError(
            f"n_classes must be 2 for 'binary' and at least 2 for 'classes', got {dataset.n_classes}; set n_classes."
        )
    if y.dtype != np.int64 or y.min() < 0 or y.max() >= dataset.n_classes:
        raise ConfigError(
            f"{part} labels must be int64 between 0 and {dataset.n_classes - 1}, got {y.dtype} between "
            f"{y.min()} and {y.max()}; number the classes from 0."
        )
