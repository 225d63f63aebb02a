"""A run goes on as what it was when it began, with the ledger it began with, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.runtime.run import resume, start
from dpzv.runtime.run_folder import RunFolder


def config_of(*assignments: str) -> Config:
    """A short run on digits with secret noise."""
    tree = recipes.tree("digits")
    for assignment in ("runtime.threads=1", "train.rounds=12", "head.rule=frozen", "head.refit_steps=4", *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a run that was stopped after five rounds."""
    folder = tmp_path / "run"
    assert start(config_of(), folder, lambda snapshot: snapshot.t < 5, float("inf")) is None
    return folder


def resumed(folder: Path) -> dict[str, Any] | None:
    return resume(folder, lambda snapshot: True, float("inf"))


def edit(folder: Path, assignment: str) -> None:
    """Change one line of config.toml, as an operator could."""
    path = folder / "config.toml"
    tree = configuration.merge(msgspec.toml.decode(path.read_bytes()), configuration.set_key(assignment))
    path.write_text(tomli_w.dumps(tree))


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("train.seed=7", r"train\.seed = 0, got 7 "),
        ("train.eta_m=0.5", r"train\.eta_m = [\d.]+, got 0\.5;"),
        ("head.hidden=16", r"head\.hidden = \d+, got 16;"),
        ("codec.name=float16", r"codec\.name = float32, got float16;"),
    ],
)
def test_a_setting_that_was_edited_is_refused_by_its_name(stopped: Path, assignment: str, named: str) -> None:
    edit(stopped, assignment)
    with pytest.raises(PrivacyRefused, match=named) as refused:
        resumed(stopped)
    assert refused.value.exit_code == 4


def test_all_edited_settings_are_named(stopped: Path) -> None:
    edit(stopped, "train.seed=7")
    edit(stopped, "train.momentum=0.25")
    with pytest.raises(PrivacyRefused, match=r"train\.momentum = .*, got 0\.25") as refused:
        resumed(stopped)
    assert "train.seed = 0, got 7" in str(refused.value)


def test_an_earlier_run_that_is_named_later_is_refused(stopped: Path, tmp_path: Path) -> None:
    """Folders of earlier runs may be moved, but which runs they are is part of the claim."""
    assert start(config_of("privacy.epsilon=0.5"), tmp_path / "other", lambda snapshot: True, float("inf")) is not None
    edit(stopped, f'privacy.parents=["{tmp_path / "other"}"]')
    with pytest.raises(PrivacyRefused, match=r"parents = nothing, got [0-9a-f]{8}"):
        resumed(stopped)


def test_what_is_a_machines_own_may_change(stopped: Path) -> None:
    for assignment in ("runtime.checkpoint_seconds=5", f'table.path="{stopped / "table"}"'):
        edit(stopped, assignment)
    summary = resumed(stopped)
    assert summary is not None
    assert summary["rounds"] == 12


@pytest.mark.parametrize("kept", ["transcript.jsonl", "metrics.jsonl", "checkpoint", "weights"])
def test_a_folder_that_lost_its_ledger_is_refused(stopped: Path, kept: str) -> None:
    """What was released is known to others, so the same rounds may not be answered with fresh noise."""
    if kept == "weights":
        assert resumed(stopped) is not None
    for path in stopped.iterdir():
        if path.name not in ("config.toml", kept):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = sorted(stopped.rglob("*"))
    with pytest.raises(PrivacyRefused, match=r"ledger\.sqlite is missing"):
        resumed(stopped)
    assert sorted(stopped.rglob("*")) == before


def test_of_a_copied_folder_only_one_goes_on(stopped: Path, tmp_path: Path) -> None:
    """The copy takes the name of the original, which goes elsewhere; no round may be released by both."""
    shutil.copytree(stopped, tmp_path / "copy")
    stopped.rename(tmp_path / "original")
    (tmp_path / "copy").rename(stopped)
    assert resumed(stopped) is not None
    shutil.move(tmp_path / "original", tmp_path / "elsewhere")
    with pytest.raises(PrivacyRefused, match="is a copy"):
        resumed(tmp_path / "elsewhere")


def test_a_restored_folder_does_not_go_on(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "backup")
    assert resume(stopped, lambda snapshot: snapshot.t < 8, float("inf")) is None
    shutil.rmtree(stopped)
    shutil.move(tmp_path / "backup", stopped)
    with pytest.raises(PrivacyRefused, match="a copy or a restored backup"):
        resumed(stopped)


def test_a_run_that_left_nothing_behind_begins_anew(tmp_path: Path) -> None:
    """A process that was killed before its ledger was made has released nothing."""
    RunFolder.create(tmp_path / "run", configuration.render(config_of()))
    summary = resumed(tmp_path / "run")
    assert summary is not None
    assert summary["rounds"] == 12


def test_the_folder_of_a_party_follows_its_own_settings_and_refuses_others(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    for config in (config_of(), config_of("runtime.threads=2")):
        with RunFolder.of_run(path, config):
            pass
    assert RunFolder.existing(path).config() == config_of("runtime.threads=2")
    with pytest.raises(ConfigError, match=r"train\.seed = 0, got 3; give all parties"):
        RunFolder.of_run(path, config_of("train.seed=3"))
