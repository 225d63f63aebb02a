"""A logistic regression on untrained devices' embeddings, without privacy: a recipe's training must do as well.

python -m benchmarks.frozen_linear amazon data.path=reviews.jsonl.xz     test accuracy on the recipe's own split
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpzv import recipes
from dpzv.config import Config, merge, parse, set_key
from dpzv.protocol.messages import Evaluation, Fill
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import load_data
from dpzv.runtime.simulate import Simulation

__all__ = ["accuracy", "main"]

PENALTIES = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]  # inverse penalties; the best is chosen on the training records by five folds


def accuracy(config: Config) -> float:
    """Test accuracy of the regression, on the same records and embeddings that the recipe starts from."""
    data = load_data(config)
    devices = Simulation(config, data, partial(make_networks, config, data)).devices
    train = np.concatenate([_rows(device.fill()) for device in devices], axis=1)
    test = np.concatenate([_rows(device.evaluate()) for device in devices], axis=1)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    search = GridSearchCV(model, {"logisticregression__C": PENALTIES}, cv=5, n_jobs=-1).fit(train, data.y_train)
    return float(search.score(test, data.y_test))


def _rows(messages: Iterable[Fill | Evaluation]) -> NDArray[np.float32]:
    return np.concatenate([message.h for message in messages])


def main(name: str, *assignments: str) -> int:
    """Print the accuracy for recipe `name` with `KEY=VALUE` assignments."""
    tree = recipes.tree(name)
    for assignment in assignments:
        tree = merge(tree, set_key(assignment))
    print(f"{name}: logistic regression on untrained devices, {100 * accuracy(parse(tree)):.2f} % of test records")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
