"""The area under the ROC curve against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dpzv.data.dataset import Records, from_arrays
from dpzv.runtime.journal import measured

N = 3000


@pytest.mark.parametrize("kind", ["all different", "many equal", "all equal", "upside down", "not a number"])
def test_the_area_is_that_of_scikit_learn(kind: str) -> None:
    draw = np.random.default_rng(5)
    y = draw.integers(0, 2, N)
    y[:2] = 0, 1
    score = draw.standard_normal(N) + y
    score = {
        "many equal": np.round(score),
        "all equal": np.zeros(N),
        "upside down": -score,
        "not a number": np.where(draw.random(N) < 0.1, np.nan, score),
    }.get(kind, score)
    records = Records([np.zeros((N, 1), np.float32)], y)
    data = from_arrays(records, records, task="binary", n_classes=2)
    output = torch.from_numpy(score.astype(np.float32))
    found = measured(data, output[:, None], torch.from_numpy(y).float())
    assert found.test_auc == roc_auc_score(y, output.nan_to_num(0.0).numpy())


def test_one_class_has_no_area() -> None:
    x = [np.zeros((3, 1), np.float32)]
    trained, tested = Records(x, np.array([0, 1, 1])), Records(x, np.ones(3, np.int64))
    data = from_arrays(trained, tested, task="binary", n_classes=2)
    assert measured(data, torch.zeros(3, 1), torch.ones(3)).test_auc is None
