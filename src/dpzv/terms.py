"""The words that the configuration knows, one for each concept.

The lists of methods, head rules and starts are open: `declarations.py` says which there are and what each is.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "Accounting",
    "HeadRuleName",
    "MethodName",
    "Neighbours",
    "NoiseSourceName",
    "Protects",
    "Schedule",
    "StartName",
    "Task",
    "Where",
]

Task = Literal["binary", "classes", "regression"]
"""What is predicted: a 0/1 label, one of several classes, or a number."""

Neighbours = Literal["replace-one", "zero-out"]
"""When two data sets are neighbours: one record becomes anything else, or contributes nothing."""

Protects = Literal["records", "labels"]
"""What is protected: label and other devices' features of a record, or its label alone."""

Accounting = Literal["exact", "paper"]
"""`exact` counts what curious devices see; `paper` is the published rule, which is no guarantee."""

MethodName = str
"""Which algorithm the rounds follow; one of those in `declarations.py`, each in a file of `methods/`."""

HeadRuleName = str
"""How the server's own model `w_0` moves; one of those in `declarations.py`."""

StartName = str
"""Where a device's weights `w_m` come from before the first round; one of those in `declarations.py`."""

NoiseSourceName = Literal["exact", "seeded"]
"""Secret noise on integers, or reproducible noise for simulation."""

Where = Literal["downlink", "uplink"]
"""What gets the noise: the server's answer, or a rival's embeddings before they reach the server."""

Schedule = Literal["constant", "linear", "cosine"]
"""How a step size falls over the rounds."""
