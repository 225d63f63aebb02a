"""One measured figure and the bar it must hold, the figures of one benchmark, and sizes of this process."""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Row", "rows_of", "status_bytes", "table"]


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, the figure, and the largest (`most`) or smallest (not `most`) allowed value."""

    what: str
    figure: float
    bar: float
    most: bool = True

    @property
    def held(self) -> bool:
        """Whether the bar holds."""
        return self.figure <= self.bar if self.most else self.figure >= self.bar


def table(rows: list[Row]) -> str:
    """The rows as aligned text."""
    width = max(len(row.what) for row in rows)
    lines = [f"{'benchmark':<{width}}  {'figure':>8}  {'bar':>9}  held"]
    for row in rows:
        bar = f"{'<=' if row.most else '>='} {row.bar:g}"
        lines.append(f"{row.what:<{width}}  {row.figure:>8.3f}  {bar:>9}  {'yes' if row.held else 'NO'}")
    return "\n".join(lines)


def rows_of(name: str) -> list[Row]:
    """Run the benchmark `name` in this process."""
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state  # runs with secret noise leave notes there
        found: list[Row] = importlib.import_module(f"benchmarks.{name}").rows()
        return found


def status_bytes(field: str) -> int:
    """A size from the kernel's account of this process, such as `VmHWM`, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
