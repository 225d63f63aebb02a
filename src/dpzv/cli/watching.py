"""Runs under a progress bar: one after the other, or two at a time in threads where each takes one core."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from dpzv.config import Config
    from dpzv.runtime.journal import Snapshot
    from dpzv.runtime.server_run import Observer

__all__ = ["Summary", "Watchable", "at_once", "warnings", "watched"]

Summary = dict[str, Any]


class Watchable(NamedTuple):
    """A run: its name, its folder, and what runs it; `run` gives `None` if its observer stopped it."""

    name: str
    folder: Path
    run: Callable[[Observer, float], Summary | None]


def at_once(configs: Sequence[Config]) -> int:
    """How many of these runs go on at the same time: two if each of them takes one core of several, else one.

    More would gain little, since the threads of a process take turns wherever Python itself has work to do.
    """
    from dpzv.runtime.accelerator import threads_of
    from dpzv.runtime.grid import cores

    narrow = all(threads_of(config) == 1 and config.runtime.accelerator == "cpu" for config in configs)
    return 2 if narrow and len(configs) > 1 and cores() > 1 else 1


def watched(runs: Sequence[Watchable], max_seconds: float, *, quiet: bool, threads: int = 1) -> dict[str, Summary]:
    """The summaries of runs by their names, in this order, under a progress bar; ends with 130 if interrupted.

    `threads` of the runs go on at the same time. The first that fails stops the others, which can be resumed.
    """
    from dpzv.runtime.progress import progress_bar, shown_in, stop_asked

    found: dict[str, Summary | None] = {}
    errors: list[BaseException] = []
    with stop_asked() as stopped, progress_bar(quiet) as bar, warnings(quiet):

        def work(one: Watchable) -> None:
            show = shown_in(bar, one.name if threads > 1 else "")

            def observe(snapshot: Snapshot) -> bool:
                show(snapshot)
                return not (stopped() or errors)

            try:
                found[one.name] = one.run(observe, max_seconds)
            except BaseException as error:
                errors.append(error)

        _in_threads(runs, work, lambda: bool(stopped() or errors or None in found.values()), threads)
    if errors:
        raise errors[0]
    if stopped_at := [one.folder for one in runs if found.get(one.name) is None and one.name in found]:
        again = " and ".join(f"`dpzv resume {folder}`" for folder in stopped_at)
        typer.echo(f"dpzv: interrupted; everything up to here is kept, go on with {again}.", err=True)
    if stopped_at or len(found) < len(runs):
        raise typer.Exit(130)
    return {one.name: summary for one in runs if (summary := found[one.name]) is not None}


def _in_threads(
    runs: Sequence[Watchable], work: Callable[[Watchable], None], ended: Callable[[], bool], threads: int
) -> None:
    """Call `work` for each run until it `ended`; in this thread if one is enough.

    The threads do not outlive the process: a second Ctrl-C ends it without waiting for the work under way.
    """
    waiting = deque(runs)

    def take() -> None:
        while waiting and not ended():
            try:
                one = waiting.popleft()
            except IndexError:  # another thread took the last one meanwhile
                return
            work(one)

    if threads == 1:
        take()
        return
    others = [threading.Thread(target=take, daemon=True) for _ in range(threads)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()


@contextmanager
def warnings(quiet: bool, of: str = "dpzv.plan") -> Iterator[None]:
    """Inside the block, warnings of a log are printed, or dropped if `quiet`: what is weak about a plan, or others."""
    log, handler = logging.getLogger(of), logging.NullHandler() if quiet else logging.StreamHandler()
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = True
