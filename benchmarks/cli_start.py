"""How long the calculator `dpzv privacy` takes to answer, compared with importing numpy and scipy.special alone."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.bar import Row

__all__ = ["rows"]

PLAN = "--epsilon 1 --delta 1e-5 --records 60000 --batch 512 --passes 5 --devices 7".split()
COMMANDS = {
    "convert": ["-m", "dpzv", "privacy", "convert", "--epsilon", "1", "--delta", "1e-5"],
    "plan": ["-m", "dpzv", "privacy", "plan", *PLAN],
}


def _seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def rows() -> list[Row]:
    """One row for each command: its median time over that of the imports, measured in turn with them."""
    floor: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(7):
        floor.append(_seconds(["-c", "import numpy, scipy.special"]))
        for name, arguments in COMMANDS.items():
            taken[name].append(_seconds(arguments))
    return [
        Row(f"dpzv privacy {name}: start over importing numpy and scipy.special", statistics.median(times) / base, 2)
        for base in [statistics.median(floor)]
        for name, times in taken.items()
    ]
