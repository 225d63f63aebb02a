"""Default settings on a small table of one's own: as good as joined data, and training does no harm."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dpzv.config import merge, parse
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.rng import numpy_generator
from dpzv.runtime.baselines import UNTRAINED
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import run

TRAIN, TEST = 600, 1500


def applicants() -> Dataset:
    """Two companies know something of a default: one has 24 columns, so that 16 mixtures of them would lose some."""
    draw = numpy_generator("applicants")
    xs = [draw.uniform(-1, 1, (TRAIN + TEST, d)).astype(np.float32) for d in (24, 5)]
    odds = xs[0] @ draw.normal(size=24) + 2 * xs[1] @ draw.normal(size=5)
    y = (odds + draw.logistic(size=len(odds)) > 0).astype(np.int64)
    train, test = (Records([x[part] for x in xs], y[part]) for part in (slice(TRAIN), slice(TRAIN, None)))
    return from_arrays(train, test, task="binary")


def test_defaults_are_as_good_as_joined_data_and_better_than_each_party(tmp_path: Path) -> None:
    data, auc = applicants(), {}
    base = {"data": {"name": "arrays"}, "noise": {"source": "seeded"}}
    for name, changes in {"trained": {}, "untrained": UNTRAINED}.items():
        config = parse(merge(base, changes))
        summary = run(config, data, partial(make_networks, config, data), tmp_path / name, lambda _: True)
        assert summary is not None
        auc[name] = summary["test_auc"]
    for parties in ([0], [1], [0, 1]):
        x, x_test = (np.hstack([part[i] for i in parties]) for part in (data.x_train, data.x_test))
        model = LogisticRegression().fit(x, data.y_train)
        auc[str(parties)] = roc_auc_score(data.y_test, model.predict_proba(x_test)[:, 1])
    assert auc["trained"] > auc["[0, 1]"] - 0.01
    assert auc["trained"] > max(auc["[0]"], auc["[1]"]) + 0.02
    assert abs(auc["trained"] - auc["untrained"]) < 0.005  # so little noise that nothing is lost
