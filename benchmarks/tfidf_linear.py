"""A logistic regression on the words of reviews, without privacy and with all text in one place.

It is the strong simple baseline of the text recipes. Words and pairs of words are counted in whole texts, and then only
in the tokens that the recipe's devices hold.

python -m benchmarks.tfidf_linear imdb
python -m benchmarks.tfidf_linear amazon data.path=reviews.jsonl.xz     test accuracy on the recipe's own split
python -m benchmarks.tfidf_linear imdb records=500     the same with 500 training and 500 test records, publicly drawn
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from benchmarks.frozen_linear import asked, few, few_records
from dpzv.config import Config
from dpzv.data.catalogue import card_of
from dpzv.data.encoder import encoder_folder, pad_id
from dpzv.data.files import data_folder
from dpzv.data.reviews import Choice
from dpzv.runtime.run import load_data

__all__ = ["main", "of_tokens", "of_whole_texts", "regression_accuracy"]

PENALTIES = [1.0, 3.0, 10.0, 30.0]  # inverse penalties; the best is chosen on the training records by three folds


def regression_accuracy(
    train: Iterable[str], y_train: Sequence[int], test: Iterable[str], y_test: Sequence[int]
) -> float:
    """Test accuracy; vocabulary, weights of words and penalty are chosen on the training texts alone."""
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    x_train = words.fit_transform(train)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": PENALTIES}, cv=folds)
    search.fit(x_train, np.asarray(y_train))
    return float(search.score(words.transform(test), np.asarray(y_test)))


def of_whole_texts(config: Config, records: int = 0) -> float:
    """The accuracy on whole texts: the records are those of the recipe, but nothing is cut off."""
    card = card_of(config.data.name)
    folder = data_folder(config.data.path) if card.origin else Path(config.data.path).expanduser()
    chosen = Choice(import_module(f"dpzv.data.sets.{card.name}").split_reader(folder))
    train, test = list(chosen.training()), list(chosen.testing())
    train, test = ([every[i] for i in few(len(every), records)] for every in (train, test))
    labels = [[review.label for review in reviews] for reviews in (train, test)]
    return regression_accuracy((r.whole for r in train), labels[0], (r.whole for r in test), labels[1])


def of_tokens(config: Config, records: int = 0) -> float:
    """The accuracy on the tokens that the devices hold, whose numbers are taken as words."""
    data, pad = few_records(load_data(config), records), pad_id(encoder_folder(config.data.encoder))
    train, test = (_texts(x, pad) for x in (data.x_train, data.x_test))
    return regression_accuracy(train, data.y_train.tolist(), test, data.y_test.tolist())


def _texts(x: Sequence[NDArray[np.int32]], pad: int) -> Iterator[str]:
    """The tokens of every record as one text; a letter before each number makes it a word of at least two signs."""
    for ids in np.concatenate(x, axis=1):
        yield " ".join(f"t{i}" for i in ids[ids != pad])


def main(name: str, *assignments: str) -> int:
    """Print both for recipe `name` with `KEY=VALUE` assignments, and ``records=N`` for a part of the records."""
    config, records = asked(name, assignments)
    for what, found in (("whole texts", of_whole_texts), ("the devices' tokens", of_tokens)):
        print(f"{name}: tf-idf and logistic regression on {what}, {100 * found(config, records):.2f} % of test records")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
