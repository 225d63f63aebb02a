"""Runs that are watched: their order, two at a time, and what an error or Ctrl-C does to the others."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import typer

from dpzv import config as configuration
from dpzv import recipes
from dpzv.cli.watching import Watchable, at_once, watched
from dpzv.config import Config
from dpzv.runtime.grid import cores
from dpzv.runtime.journal import Snapshot
from dpzv.runtime.server_run import Observer

NOW = Snapshot("rounds", 1, 2, None, 0, 0.0, 1.0)


def config_of(recipe: str, *assignments: str) -> Config:
    tree = recipes.tree(recipe)
    for assignment in assignments:
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


def test_two_go_on_at_the_same_time_and_keep_their_order() -> None:
    """Each of the first two waits for the other, which would take for ever one after the other."""
    meeting = threading.Barrier(2, timeout=20)

    def run(observe: Observer, max_seconds: float) -> dict[str, Any]:
        meeting.wait()
        assert observe(NOW)
        return {"seconds": max_seconds}

    runs = [Watchable(name, Path(name), run) for name in ("b", "a")]
    runs += [Watchable("", Path("c"), lambda observe, max_seconds: {"last": True})]
    found = watched(runs, 7.0, quiet=True, threads=2)
    assert list(found.items()) == [("b", {"seconds": 7.0}), ("a", {"seconds": 7.0}), ("", {"last": True})]


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_stops_the_others_and_is_raised(threads: int) -> None:
    begun, stopped = threading.Event(), []

    def fails(observe: Observer, max_seconds: float) -> dict[str, Any]:
        assert threads == 1 or begun.wait(20)
        raise OSError("the disk is full")

    def goes_on(observe: Observer, max_seconds: float) -> None:
        begun.set()
        while observe(NOW):
            pass
        stopped.append(True)

    runs = [Watchable("a", Path("a"), fails), Watchable("b", Path("b"), goes_on), Watchable("c", Path("c"), fails)]
    with pytest.raises(OSError, match="the disk is full"):
        watched(runs, 1.0, quiet=True, threads=threads)
    assert stopped == [True] * (threads - 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_stops_all_and_says_how_to_go_on(threads: int, capsys: pytest.CaptureFixture[str]) -> None:
    def run(observe: Observer, max_seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while observe(NOW):
            pass

    def waits(observe: Observer, max_seconds: float) -> None:
        while observe(NOW):
            pass

    def never(observe: Observer, max_seconds: float) -> dict[str, Any]:
        pytest.fail("a run was begun after Ctrl-C")

    runs = [Watchable("b", Path("runs/b"), waits)] * (threads == 2)
    runs += [Watchable("a", Path("runs/a"), run), Watchable("", Path("runs"), never)]
    with pytest.raises(typer.Exit) as ended:
        watched(runs, 1.0, quiet=True, threads=threads)
    assert ended.value.exit_code == 130
    told = capsys.readouterr().err
    assert "dpzv resume runs/a`" in told
    assert ("dpzv resume runs/b` and " in told) == (threads == 2)
    assert "dpzv resume runs`" not in told


def test_only_runs_of_one_core_go_on_at_the_same_time() -> None:
    narrow = config_of("flights-scorecard")
    assert at_once([narrow, narrow]) == min(2, cores())
    assert at_once([narrow]) == 1
    assert at_once([narrow, config_of("mnist")]) == 1
    assert at_once([narrow, config_of("flights-scorecard", "runtime.threads=2")]) == 1
    assert at_once([narrow, config_of("flights-scorecard", "runtime.accelerator=cuda")]) == 1
