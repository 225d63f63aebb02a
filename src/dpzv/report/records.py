"""A finished run as it is reported: what it was asked to be, its summary and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["FROZEN", "Record", "read"]

FROZEN = "frozen"
"""The name of runs whose devices stay as they start."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run. `epsilon` is what was asked for; `None` means no privacy, and 0 untrained devices."""

    method: str
    epsilon: float | None
    seed: int
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def read(folder: Path, method: str, epsilon: float | None, seed: int) -> Record:
    """The record of the finished run in `folder`."""
    summary = msgspec.json.decode((folder / "summary.json").read_bytes())
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    return Record(method, epsilon, seed, summary, [msgspec.json.decode(line) for line in lines])
