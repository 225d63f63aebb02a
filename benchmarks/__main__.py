"""Run every benchmark and print one table; exit 1 if a bar is missed."""

from __future__ import annotations

import os
import sys
import tempfile

from benchmarks import (
    cli_start,
    head_gradients,
    ledger_rate,
    method_memory,
    network_rate,
    predict_rate,
    round_cost,
    scale_devices,
    scale_network,
    scale_parameters,
    scale_records,
    zo_memory,
)
from benchmarks.bar import Row, table

__all__: list[str] = []


def main() -> int:
    """Run all benchmarks."""
    rows: list[Row] = []
    for module in (
        round_cost,
        zo_memory,
        method_memory,
        head_gradients,
        ledger_rate,
        network_rate,
        predict_rate,
        cli_start,
        scale_parameters,
        scale_devices,
        scale_records,
        scale_network,
    ):
        print(f"running {module.__name__} ...", file=sys.stderr)
        with tempfile.TemporaryDirectory() as state:
            os.environ["XDG_STATE_HOME"] = state  # runs with secret noise leave notes there
            rows += module.rows()
    print(table(rows))
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
