"""Peak memory of a device's round under each method over that of inference: ResNet-18 on views, a BERT on texts.

python -m benchmarks.method_memory            the table for a CPU
python -m benchmarks.method_memory cuda       the table for an accelerator
python -m benchmarks.method_memory MODEL METHOD MACHINE     one peak in MiB: mpnet dpzv cpu, mpnet inference cpu
"""

from __future__ import annotations

import math
import sys

from benchmarks.bar import Row, table
from dpzv.declarations import METHODS
from dpzv.runtime.memory_peak import TITLES, measured

__all__ = ["BAR", "main", "rows"]

BAR = 1.1  # for dpzv; the ratios of the other methods are only reported


def rows(accelerator: str = "cpu") -> list[Row]:
    """One row for each model and method: its peak over that of inference."""
    found = []
    models = ("resnet18", "bert", "mpnet") if accelerator == "cuda" else ("resnet18", "bert")  # a CPU takes minutes
    for model in models:
        inference = measured(model, "inference", accelerator)
        for method in METHODS:
            ratio = measured(model, method, accelerator) / inference
            bar = BAR if method == "dpzv" else math.inf
            what = f"peak memory of {method} over inference ({inference / 2**20:.0f} MiB), {TITLES[model]}"
            found.append(Row(what, ratio, bar))
    return found


def main(arguments: list[str]) -> str:
    """What the command line asks for: a table, or the peak of one method on one network."""
    if len(arguments) == 3:
        model, action, machine = arguments
        return f"{measured(model, action, machine) / 2**20:.1f} MiB"
    return table(rows(*arguments))


if __name__ == "__main__":
    print(main(sys.argv[1:]))
