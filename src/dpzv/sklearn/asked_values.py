"""Checks of what a caller gave the estimators, and what a fit tells its caller about the final head."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["check_labels", "final_head_of", "number_of"]


def check_labels(y: Any, *, number: bool) -> None:
    """Refuse labels that are missing, and texts where a `number` is to be predicted."""
    if y is None:
        return  # scikit-learn refuses it in its own words
    values = np.asarray(y)
    if values.dtype.kind not in "OUSfcmM":
        return
    missing = pd.isna(values)
    if missing.any():
        raise ValueError(
            f"every record must have a label, but y contains NaN or None for {int(missing.sum())} of {len(values)} "
            "records; leave these records out of X and y."
        )
    if number and values.dtype.kind in "OUS":
        wrong = [label for label in values.ravel() if not _is_number(label)]
        if wrong:
            raise ValueError(
                f"a regression predicts numbers, got labels that are none, such as {wrong[0]!r}; give numbers, or use "
                "VerticalClassifier for classes."
            )


def number_of(name: str, value: Any) -> float:
    """The number that a parameter is; refuses anything else in a sentence."""
    if not _is_number(value):
        raise ValueError(f"{name} must be a number above 0, got {value!r}; give one, such as 1.0.")
    return float(value)


def final_head_of(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the final head was chosen; `None` if it was not fitted. Warns if training the parties has added nothing.

    Losses are on training records that a candidate was not fitted to; `untrained_loss` is the least that there would
    have been without training, and `None` where nothing was trained.
    """
    chosen, before = summary["final_head"], summary["untrained"]
    if chosen is None:
        return None
    losses = dict(chosen["losses"])
    untrained = min(before["final_head"]["losses"].values(), default=None) if before else None
    if untrained is not None and min(losses.values()) >= untrained:
        warnings.warn(
            f"training the parties added nothing: the loss on held-out training records is {min(losses.values()):.4f}, "
            f"and {untrained:.4f} with untrained parties; with settings={{'train.rounds': 0}} nothing is released and "
            "no budget is spent.",
            stacklevel=4,
        )
    return {"name": chosen["name"], "setting": chosen["setting"], "losses": losses, "untrained_loss": untrained}


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
