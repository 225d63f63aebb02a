"""Data sets, their vertical splits, public encodings and batch schedules."""

from __future__ import annotations

from dpzv.data.catalogue import Availability, describe, load, names
from dpzv.data.columns import Column
from dpzv.data.dataset import Dataset, check, from_arrays
from dpzv.data.fetch import fetch
from dpzv.data.schedule import BatchSchedule

__all__ = [
    "Availability",
    "BatchSchedule",
    "Column",
    "Dataset",
    "check",
    "describe",
    "fetch",
    "from_arrays",
    "load",
    "names",
]
