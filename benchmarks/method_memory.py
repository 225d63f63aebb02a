"""Peak memory of a device's round under each method over that of inference: ResNet-18 on views, a BERT on texts.

python -m benchmarks.method_memory            the table for a CPU
python -m benchmarks.method_memory cuda       the table for an accelerator
"""

from __future__ import annotations

import math
import sys

from benchmarks.bar import Row, table
from dpzv.declarations import METHODS
from dpzv.runtime.memory_peak import TITLES, measured

__all__ = ["BAR", "rows"]

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


if __name__ == "__main__":
    print(table(rows(*sys.argv[1:])))
