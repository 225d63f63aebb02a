"""Test metrics, which stay with the server, and which of them says most about a task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Metrics", "headline", "headline_text", "improves"]


class Metrics(msgspec.Struct, frozen=True):
    """Test metrics; `None` where the task has no such metric."""

    test_accuracy: float | None
    test_auc: float | None
    test_loss: float
    test_r2: float | None = None
    test_rmse: float | None = None  # in the units of the label


def headline(values: Metrics | Mapping[str, Any]) -> tuple[str, float]:
    """The metric that says most about the task, and its value: AUC, else accuracy, else R^2, else loss.

    `values` are metrics, or a mapping with the same keys, such as a line of metrics.jsonl or a summary. There a loss
    that is not finite is `None`.
    """
    found = msgspec.structs.asdict(values) if isinstance(values, Metrics) else values
    for name in ("test_auc", "test_accuracy", "test_r2"):
        if found.get(name) is not None:
            return name.removeprefix("test_"), float(found[name])
    return "loss", math.nan if found["test_loss"] is None else float(found["test_loss"])


def improves(values: Mapping[str, Any], on: Mapping[str, Any]) -> bool:
    """Whether the headline of `values` is better than that of `on`."""
    (name, value), (_, other) = headline(values), headline(on)
    return value < other if name == "loss" else value > other


def headline_text(values: Metrics | Mapping[str, Any]) -> str:
    """The headline as text, such as ``AUC 0.9123``."""
    name, value = headline(values)
    if name == "r2":
        found = msgspec.structs.asdict(values) if isinstance(values, Metrics) else values
        return f"R^2 {value:.4f}, RMSE {found['test_rmse']:.4g}"
    return {"auc": f"AUC {value:.4f}", "accuracy": f"{100 * value:.2f} %"}.get(name, f"{name} {value:.4f}")
