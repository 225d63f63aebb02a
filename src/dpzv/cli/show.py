"""How a finished run is shown: a small table, then the privacy statement in words."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpzv.metrics import headline_text

__all__ = ["result", "statement_text"]

INDENT = 15  # where the text of a statement's labelled line begins


def result(summaries: list[dict[str, Any]], folder: Path) -> None:
    """Print one row a run and the statement of the last one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "test", "private head", "rounds", "MB", "seconds", "epsilon", "delta"):
        table.add_column(name, justify="left" if name in ("run", "test", "private head") else "right")
    for summary in summaries:
        epsilon = summary["epsilon"]
        table.add_row(
            "frozen devices" if summary["rounds"] == 0 else f"{summary['method']}, {summary['head_rule']}",
            headline_text(summary),
            headline_text(summary["private_head"]),
            str(summary["rounds"]),
            f"{(summary['bytes_up'] + summary['bytes_down']) / 1e6:.1f}",
            f"{summary['seconds']:.1f}",
            "none" if epsilon is None or math.isinf(epsilon) else f"{epsilon:g}",
            f"{summary['delta_dp']:g}",
        )
    console = Console()
    console.print(table)
    console.print()
    statement_text(summaries[-1]["statement"])
    console.print()
    console.print(f"Run folder: {folder}", highlight=False, markup=False)


def statement_text(text: str) -> None:
    """Print a statement, its long lines folded under their text."""
    console = Console()
    for line in text.splitlines():
        folded = textwrap.fill(line, console.width - 1, subsequent_indent=" " * INDENT)
        console.print(folded, highlight=False, markup=False)
