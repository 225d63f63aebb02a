"""`breast-cancer`: is a tumour malignant? Three devices hold ten features each; it comes inside scikit-learn."""

from __future__ import annotations

import numpy as np

from dpzv.data.cards import Card
from dpzv.data.frames import RawFrames, encoded

__all__ = ["CARD", "raw"]


def raw() -> RawFrames:
    """The raw frames of the three devices (mean, error, worst); y = 1 is malignant.

    Column names are scikit-learn's, such as ``mean radius``, ``radius error`` and ``worst radius``.
    """
    import pandas as pd
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = [str(name) for name in bunch.feature_names]
    values = np.ascontiguousarray(bunch.data, dtype=np.float64)
    groups = [slice(10 * m, 10 * m + 10) for m in range(3)]
    frames = tuple(pd.DataFrame(values[:, group], columns=names[group]) for group in groups)
    y = (np.asarray(bunch.target) == 0).astype(np.int64)  # scikit-learn writes 0 for malignant
    return RawFrames(CARD, frames, y, values.tobytes())


CARD = Card(
    name="breast-cancer",
    task="binary",
    n_classes=2,
    records=569,
    devices=("mean", "error", "worst"),
    tabular=True,
    source="Cell nuclei of breast tumours (UCI Breast Cancer Wisconsin, diagnostic), label 1 = malignant, "
    "from scikit-learn.",
    load=lambda wanted: encoded(raw(), wanted.columns),
)
