"""What a user sees of runs at work, a bar on standard error, and how the user stops them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dpzv.metrics import headline_text

WINDOW = 20.0
"""Seconds over which the pace is measured."""

if TYPE_CHECKING:
    from dpzv.runtime.journal import Snapshot

__all__ = ["Pace", "progress_bar", "showing", "shown_in", "stop_asked"]


class Pace:
    """How many rounds a second were made lately, and how long the rest takes at this rate."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def text(self, rounds: int, total: int, now: float) -> str:
        """The pace after `rounds` of `total` at the time `now` in seconds; empty while nothing is known."""
        self._seen.append((now, rounds))
        while now - self._seen[0][0] > WINDOW and len(self._seen) > 2:
            self._seen.pop(0)
        (before, fewer), passed = self._seen[0], rounds - self._seen[0][1]
        if now - before < 0.5 or passed <= 0:
            return ""
        rate = (rounds - fewer) / (now - before)
        left = round((total - rounds) / rate)
        return f"{rate:,.0f} rounds/s, {left // 60}:{left % 60:02} left"


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Tells whether Ctrl-C or SIGTERM came; a second signal ends the process without waiting for the work under way."""
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
    """A bar on standard error, or none if `quiet`; its tasks have a field `figures`."""
    parts = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[figures]}"))
    return Progress(*parts, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet)


@contextmanager
def showing(quiet: bool) -> Iterator[Callable[[Snapshot], None]]:
    """What shows a snapshot in a bar; nothing is shown if `quiet`."""
    with progress_bar(quiet) as bar:
        yield shown_in(bar)


def shown_in(bar: Progress, name: str = "") -> Callable[[Snapshot], None]:
    """What shows a run's snapshots in a line of `bar` that begins with its name, at most ten times a second."""
    before, shown, pace = f"{name}: " if name else "", 0.0, Pace()
    task = bar.add_task(f"{before}reading the data", total=None, figures="")

    def show(snapshot: Snapshot) -> None:
        nonlocal shown
        now = time.monotonic()
        if not bar.disable and (now - shown >= 0.1 or snapshot.stage != "rounds" or snapshot.t >= snapshot.T):
            shown, total = now, max(snapshot.T, 1)
            paced = pace.text(snapshot.t, snapshot.T, now) if snapshot.stage == "rounds" else ""
            figures = f"{_figures(snapshot)}{', ' if paced else ''}{paced}"
            bar.update(task, description=before + snapshot.stage, total=total, completed=snapshot.t, figures=figures)

    return show


def _figures(snapshot: Snapshot) -> str:
    # before the first round the metric would be that of a random start
    metric = "" if snapshot.metrics is None or not snapshot.t else f"{headline_text(snapshot.metrics)}, "
    spent = f"epsilon {snapshot.epsilon_spent:.3g} of {snapshot.epsilon:.3g}"
    return f"round {snapshot.t}/{snapshot.T}, {metric}{snapshot.bytes_total / 1e6:.1f} MB, {spent}"
