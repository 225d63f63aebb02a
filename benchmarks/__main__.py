"""Run every benchmark and print one table; exit 1 if a bar is missed.

Each has a process of its own: what one leaves in memory would count for the next.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from benchmarks.bar import Row, rows_of, table

__all__: list[str] = []


BENCHMARKS = (
    *("round_cost", "zo_memory", "method_memory", "head_gradients", "ledger_rate", "network_rate", "predict_rate"),
    *("cli_start", "scale_parameters", "scale_devices", "scale_records", "scale_network"),
)


def main() -> int:
    """Run all benchmarks, one after the other."""
    rows: list[Row] = []
    new = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=new, max_tasks_per_child=1) as processes:
        for name in BENCHMARKS:
            print(f"running {name} ...", file=sys.stderr)
            rows += processes.submit(rows_of, name).result()
    print(table(rows))
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
