"""A logistic regression on untrained devices' embeddings, without privacy: a recipe's training must do as well.

python -m benchmarks.frozen_linear amazon data.path=reviews.jsonl.xz     test accuracy on the recipe's own split
python -m benchmarks.frozen_linear imdb records=500     the same with 500 training and 500 test records, publicly drawn
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpzv import recipes
from dpzv.config import Config, merge, parse, set_key
from dpzv.data.dataset import Dataset
from dpzv.data.schedule import public_split
from dpzv.protocol.messages import Evaluation, Fill
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import load_data
from dpzv.runtime.simulate import Simulation

__all__ = ["accuracy", "asked", "few", "few_records", "main"]

PENALTIES = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]  # inverse penalties; the best is chosen on the training records by five folds


def accuracy(config: Config, records: int = 0) -> float:
    """Test accuracy of the regression, on the same records and embeddings that the recipe starts from."""
    data = few_records(load_data(config), records)
    devices = Simulation(config, data, partial(make_networks, config, data)).devices
    train = np.concatenate([_rows(device.fill()) for device in devices], axis=1)
    test = np.concatenate([_rows(device.evaluate()) for device in devices], axis=1)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    search = GridSearchCV(model, {"logisticregression__C": PENALTIES}, cv=5, n_jobs=-1).fit(train, data.y_train)
    return float(search.score(test, data.y_test))


def few(total: int, records: int) -> NDArray[np.int64]:
    """Numbers of `records` publicly drawn ones of `total` records; of all if 0."""
    return np.sort(public_split(total, records, "dpzv", "benchmark")[1]) if records else np.arange(total)


def few_records(data: Dataset, records: int) -> Dataset:
    """The data set with this many training and as many test records; with all of them if 0."""
    train, test = few(len(data.y_train), records), few(len(data.y_test), records)
    return replace(
        data,
        x_train=tuple(x[train] for x in data.x_train),
        y_train=data.y_train[train],
        x_test=tuple(x[test] for x in data.x_test),
        y_test=data.y_test[test],
    )


def asked(name: str, assignments: Iterable[str]) -> tuple[Config, int]:
    """The configuration of recipe `name` with `KEY=VALUE` assignments, and N of ``records=N``, 0 if it is not there."""
    tree, records = recipes.tree(name), 0
    for assignment in assignments:
        if assignment.startswith("records="):
            records = int(assignment.removeprefix("records="))
        else:
            tree = merge(tree, set_key(assignment))
    return parse(tree), records


def _rows(messages: Iterable[Fill | Evaluation]) -> NDArray[np.float32]:
    return np.concatenate([message.h for message in messages])


def main(name: str, *assignments: str) -> int:
    """Print the accuracy for recipe `name` with `KEY=VALUE` assignments; ``records=N`` takes a part of the records."""
    found = accuracy(*asked(name, assignments))
    print(f"{name}: logistic regression on untrained devices, {100 * found:.2f} % of test records")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
