"""A strong simple model for each kind of records, joined and without privacy: a figure to compare all others with.

Token ids: logistic regression on tf-idf of word pieces and pairs of them. Pixels: kernel regression on principal
components. Tables: boosted trees. Nothing is chosen by looking at test records; penalties are fixed.

    python -m dpzv.runtime.plain_models CONFIG.toml FOLDER
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.errors import ConfigError
from dpzv.runtime.programs import config_in, leave_summary, run_program
from dpzv.runtime.run import load_data

__all__ = ["main", "plain_model"]

COMPONENTS, CENTRES, NARROW = 64, 2000, 0.5
"""Of kernel regression: the most components, the records at which its Gaussian bells stand, and how narrow these are.

Eight pairs of components and narrowness were tried on a tenth of the training records, of MNIST and of CIFAR-10.
"""

SEED = 0


def plain_model(data: Dataset) -> tuple[str, float]:
    """The name of the model that suits the records, and its accuracy on the test records."""
    if data.task == "regression":
        raise ConfigError("the simple models predict classes, got a regression; choose a data set with classes.")
    x_train, x_test = (np.concatenate(parts, axis=1) for parts in (data.x_train, data.x_test))
    if x_train.dtype == np.int32:
        name, model = "logistic regression on tf-idf of word pieces", _of_tokens()
        x_train, x_test = _words(x_train), _words(x_test)
    elif x_train.dtype == np.float32 and data.task == "binary":
        name, model = "boosted trees", _of_tables()
    else:
        x_train, x_test = (x.astype(np.float32) / 255 for x in (x_train, x_test))
        name, model = "kernel regression on principal components", _of_pixels(x_train)
    model.fit(x_train, data.y_train)
    return name, float(model.score(x_test, data.y_test))


def _words(ids: NDArray[Any]) -> Any:
    """Token ids as texts of numbers, without the padding, for a model that counts words."""
    return np.array([" ".join(str(token) for token in row if token > 0) for row in ids], dtype=object)


def _of_tokens() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    counted = TfidfVectorizer(token_pattern=r"\S+", ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    return make_pipeline(counted, LogisticRegression(C=10.0, max_iter=1000))


def _of_pixels(x_train: NDArray[Any]) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline

    kept = PCA(min(COMPONENTS, *x_train.shape), svd_solver="randomized", random_state=SEED).fit(x_train)
    bells = Nystroem(
        gamma=NARROW / kept.explained_variance_.sum(), n_components=min(CENTRES, len(x_train)), random_state=SEED
    )
    return make_pipeline(kept, bells, RidgeClassifier(alpha=1e-2))


def _of_tables() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=SEED)


def _summary(config: Config) -> dict[str, Any]:
    began = time.monotonic()
    data = load_data(config)
    name, accuracy = plain_model(data)
    seconds = round(time.monotonic() - began, 3)
    return {"method": name, "test_accuracy": accuracy, "seconds": seconds, "data": {"name": data.name}}


def main(file: Path, folder: Path) -> None:
    """Fit the model to the records of the configuration in `file`, and leave a summary in `folder`."""
    config = config_in(file)
    leave_summary(folder, config, _summary(config))


if __name__ == "__main__":
    run_program(main)
