"""`digits` and `breast-cancer`: small sets that come inside scikit-learn, for quick runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

from dpzv.data.cards import BREAST_CANCER, DIGITS
from dpzv.data.columns import Column
from dpzv.data.dataset import Dataset, from_arrays
from dpzv.data.frames import Frames, encoded, public_split

__all__ = ["load_breast", "load_strips", "raw_breast"]

_DARKEST = 16  # pixels count black dots in a 4x4 square


def load_strips() -> Dataset:
    """`digits`: four devices with two rows of pixels each, float32 [D, 16], scaled to 0..1."""
    images, y = load_digits(return_X_y=True)
    pixels = (images / _DARKEST).astype(np.float32).reshape(len(images), len(DIGITS.devices), -1)
    train, test = public_split(DIGITS.name, len(y))
    strips = range(len(DIGITS.devices))
    return from_arrays(
        [pixels[train, m] for m in strips],
        y[train],
        [pixels[test, m] for m in strips],
        y[test],
        task=DIGITS.task,
        n_classes=DIGITS.n_classes,
        devices=DIGITS.devices,
        name=DIGITS.name,
        source=DIGITS.source,
    )


def raw_breast() -> Frames:
    """`breast-cancer`: three devices with ten features each (mean, error, worst); y = 1 is malignant.

    Column names are scikit-learn's, such as ``mean radius``, ``radius error`` and ``worst radius``.
    """
    bunch = load_breast_cancer()
    names = [str(name) for name in bunch.feature_names]
    values = np.ascontiguousarray(bunch.data, dtype=np.float64)
    groups = [slice(10 * m, 10 * m + 10) for m in range(3)]
    return Frames(
        card=BREAST_CANCER,
        frames=tuple(pd.DataFrame(values[:, group], columns=names[group]) for group in groups),
        y=(np.asarray(bunch.target) == 0).astype(np.int64),  # scikit-learn writes 0 for malignant
        digest=values.tobytes(),
    )


def load_breast(columns: Sequence[Column]) -> Dataset:
    """The tumours, encoded by the recipe's `columns`, a fifth of them for test."""
    return encoded(raw_breast(), columns)
