"""Figures of a regression: R^2, and the error in the units of the label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score, root_mean_squared_error

from dpzv.data.dataset import ServerRecords
from dpzv.data.party_records import LabelSettings, in_units
from dpzv.metrics import headline
from dpzv.rng import numpy_generator
from dpzv.runtime.journal import measured

SETTINGS = LabelSettings(file="prices.csv", id="house", label="price", task="regression", low=20_000, high=200_000)


def test_r2_and_rmse_are_those_of_scikit_learn_in_the_units_of_the_label_column() -> None:
    draw = numpy_generator("prices")
    y, output = draw.uniform(-1, 1, 80).astype(np.float32), draw.uniform(-1, 1, (80, 1)).astype(np.float32)
    records = ServerRecords("prices", "regression", 1, y, y, "", unit=SETTINGS.unit)
    found = measured(records, torch.from_numpy(output), torch.from_numpy(y))
    truth, predicted = in_units(SETTINGS, y), in_units(SETTINGS, output[:, 0])
    assert found.test_r2 == pytest.approx(r2_score(truth, predicted), rel=1e-6)
    assert found.test_rmse == pytest.approx(root_mean_squared_error(truth, predicted), rel=1e-6)
    assert headline(found) == ("r2", found.test_r2)


def test_labels_that_never_vary_have_no_r2() -> None:
    y = np.zeros(5, np.float32)
    found = measured(ServerRecords("x", "regression", 1, y, y, ""), torch.ones(5, 1), torch.from_numpy(y))
    assert (found.test_r2, found.test_rmse) == (None, 1.0)
    assert headline(found)[0] == "loss"


def test_classes_have_no_range() -> None:
    assert LabelSettings(file="a.csv", id="i", label="y", task="binary", classes=("no", "yes")).unit == 1.0
