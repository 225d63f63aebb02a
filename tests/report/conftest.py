"""Real runs for the report page: two finished ones, and one that was stopped in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest

from dpzv import config as configuration
from dpzv import recipes
from dpzv.report.page_server import PageServer
from dpzv.runtime.journal import Snapshot
from dpzv.runtime.run import start

SHORT = ("train.rounds=60", "train.eval_every=10", "head.final=private", "head.rule=frozen")


def train(folder: Path, *changes: str, until: int = 60, record_view: bool = False) -> None:
    """A short run on breast-cancer with a few changes, stopped at round `until`."""
    tree = recipes.tree("breast-cancer")
    for change in (*SHORT, *changes):
        tree = configuration.merge(tree, configuration.set_key(change))

    def observe(snapshot: Snapshot) -> bool:
        return snapshot.t < until or until == 60

    start(configuration.parse(tree), folder, observe, float("inf"), record_view=record_view)


def texts(figure: Path) -> list[str]:
    """All words of an SVG figure, in their order."""
    found = ElementTree.parse(figure).iter("{http://www.w3.org/2000/svg}text")
    return [element.text or "" for element in found]


@contextmanager
def serving(*places: Path) -> Iterator[PageServer]:
    """A page server in a thread."""
    with PageServer(places) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs `first` and `half`."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "first")
    train(folder / "half", "privacy.epsilon=0.5", "train.eval_every=15")
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped after 30 of 60 rounds."""
    folder = tmp_path_factory.mktemp("stopped") / "live"
    train(folder, until=30)
    return folder
