"""A run with kept sums, as with many devices, and with its table in a file: the run that it would be without them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.runtime import mapped_table
from dpzv.runtime.run import resume, start


def config_of(folder: Path, *more: str) -> Config:
    tree = recipes.tree("breast-cancer-scorecard")
    assignments = ("train.rounds=40", "noise.source=seeded", "head.final=private", "runtime.threads=1")
    for assignment in (*assignments, f'table.path="{folder / "table"}"', *more):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


def releases(folder: Path) -> list[str]:
    """Every release of a run, as the hexadecimal number or the hash that its transcript holds."""
    lines = (folder / "transcript.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line)["Delta"] for line in lines]


def test_kept_sums_change_nothing_but_rounding_and_are_resumed_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for few in (16, 0):
        monkeypatch.setattr(mapped_table, "FEW", few)
        summary = start(config_of(tmp_path), tmp_path / str(few), lambda now: True, float("inf"))
        assert summary is not None
        losses.append(summary["private_head"]["test_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    stopped = tmp_path / "stopped"
    assert start(config_of(tmp_path), stopped, lambda now: now.t < 17, float("inf")) is None
    assert resume(stopped, lambda now: True, float("inf")) is not None
    assert releases(stopped) == releases(tmp_path / "0")
    assert len(releases(stopped)) == 40
    assert np.fromfile(tmp_path / "table", np.float32).any()


@pytest.mark.parametrize("before", ["in memory", "in a file"])
def test_a_table_may_move_to_a_file_and_back_and_no_bit_changes(tmp_path: Path, before: str) -> None:
    """With a private head, which reads the table at random, and a final head, which reads all of it."""
    more = ("head.rule=dp-sgd", "head.model=network", "head.steps=20", "head.final=refit", "head.refit_steps=5")
    place = {"in memory": 'table.path=""', "in a file": f'table.path="{tmp_path / "table"}"'}
    summary = start(config_of(tmp_path, *more, place["in memory"]), tmp_path / "whole", lambda now: True, float("inf"))
    stopped = tmp_path / "stopped"
    assert start(config_of(tmp_path, *more, place.pop(before)), stopped, lambda now: now.t < 17, float("inf")) is None
    (after,) = place.values()
    path = stopped / "config.toml"
    path.write_text(configuration.render(config_of(tmp_path, *more, after)))
    again = resume(stopped, lambda now: True, float("inf"))
    assert summary is not None
    assert again is not None
    assert releases(stopped) == releases(tmp_path / "whole")
    same = ("test_auc", "test_loss", "private_head", "untrained", "final_head")
    assert {name: again[name] for name in same} == {name: summary[name] for name in same}
    assert not list(tmp_path.glob("*.rows"))
