"""`digits`: 8x8 digits cut into four strips of two rows, one device each; they come inside scikit-learn."""

from __future__ import annotations

import numpy as np

from dpzv.data.cards import Card, Wanted
from dpzv.data.dataset import Dataset, Records
from dpzv.data.frames import train_and_test

__all__ = ["CARD", "load"]

_DARKEST = 16  # pixels count black dots in a 4x4 square


def load(_: Wanted) -> Dataset:
    """Four devices with two rows of pixels each, float32 [D, 16], scaled to 0..1."""
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    pixels = (images / _DARKEST).astype(np.float32).reshape(len(images), len(CARD.devices), -1)
    train, test = train_and_test(CARD.name, len(y))
    strips = range(len(CARD.devices))
    return CARD.dataset(
        Records([pixels[train, m] for m in strips], y[train]), Records([pixels[test, m] for m in strips], y[test])
    )


CARD = Card(
    name="digits",
    task="classes",
    n_classes=10,
    records=1_797,
    devices=tuple(f"rows {2 * m + 1}-{2 * m + 2}" for m in range(4)),
    source="8x8 images of handwritten digits (UCI Optical Recognition of Handwritten Digits, test part), "
    "from scikit-learn.",
    load=load,
)
