"""How runs are shown: a bar that can be stopped while they go on, then a small table and the statement in words."""

from __future__ import annotations

import math
import signal
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dpzv.metrics import headline_text

__all__ = ["json_text", "progress_bar", "result", "statement_text", "stop_asked"]

INDENT = 15  # where the text of a statement's labelled line begins


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came; a second one does not wait for what is under way."""
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def progress_bar(quiet: bool) -> Progress:
    """A bar on standard error, or none; its tasks have a field `figures`."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[figures]}"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet)


def json_text(values: object) -> str:
    """Values as indented JSON that ends with its line."""
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n"


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
