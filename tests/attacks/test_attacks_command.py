"""`dpzv attack` from the views of a run to rows, a table, a figure and an exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import typer
from tests.first_run import FILES, write_files
from typer.testing import CliRunner

from dpzv.attacks import suite
from dpzv.attacks.findings import AttackRow
from dpzv.attacks.suite import attack_run
from dpzv.cli.attack_command import attack
from dpzv.cli.train_command import train
from dpzv.config import render
from dpzv.errors import ConfigError, DataError, DpzvError, PrivacyRefused
from dpzv.privacy.noise import SeededNoise
from dpzv.runtime.party_file import agreed_run
from dpzv.runtime.run_folder import RunFolder

APP = typer.Typer()
APP.command("train")(train)
APP.command("attack")(attack)


def invoke(*arguments: str | Path) -> tuple[str, DpzvError | None]:
    """What a command prints, and the error it ends with."""
    done = CliRunner().invoke(APP, [str(one) for one in arguments])
    assert done.exception is None or isinstance(done.exception, DpzvError), done.exception
    return done.stdout, done.exception


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with views."""
    place = tmp_path_factory.mktemp("attacked") / "run"
    changes = ("train.rounds=6", "head.final=refit", "head.refit_steps=10", "noise.source=seeded")
    sets = [word for change in changes for word in ("--set", change)]
    _, error = invoke("train", "breast-cancer", "--record-view", "--quiet", "--out", place, *sets)
    assert error is None
    return place


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What the command prints as JSON; it draws a figure beside the run."""
    out, error = invoke("attack", folder, "--json", "--figure", folder.parent / "figure.svg")
    assert error is None
    return out


def test_rows_have_the_names_that_scripts_rely_on(folder: Path, printed: str) -> None:
    rows = json.loads(printed)
    names = {"attack", "method", "epsilon", "score", "floor", "ceiling", "interval"}
    assert all(names <= set(row) for row in rows)
    assert {row["target"] for row in rows} == {"labels", "features", "server"}
    labels = [row for row in rows if row["target"] == "labels"]
    assert [row["attack"] for row in labels][:3] == ["sign", "batch least squares", "likelihood ratio"]
    assert {(row["method"], row["epsilon"]) for row in rows} == {("dpzv", 5.0)}
    assert all(row["interval"][0] <= row["score"] <= row["interval"][1] for row in rows)
    assert not any(row["broken"] for row in rows)
    beyond = [row for row in rows if not row["covered"]]
    assert {f"{row['target']}: {row['attack'].split(', ')[-1]}" for row in beyond} >= {"features: from predictions"}
    assert {row["target"] for row in beyond} == {"features", "server"}
    assert len(beyond) == 1 + sum(row["target"] == "server" for row in rows)
    assert not any(row["leaks"] for row in beyond)
    assert any(row["score"] > 0.9 for row in beyond)
    assert all(row["ceiling"] < 1 for row in labels)
    assert (folder.parent / "figure.svg").read_text().count("model completion, 40 a class") == 1


def test_a_coalition_of_one_attacks_the_features_of_the_last_device_outside(folder: Path) -> None:
    rows = attack_run(folder, [3])
    assert sum(row.target == "features" for row in rows) == 3
    with pytest.raises(ConfigError, match="numbered 1 to 3, got 4"):
        attack_run(folder, [1, 4])


def test_attacks_need_views_records_and_the_ledger_and_nothing_else(folder: Path, printed: str, tmp_path: Path) -> None:
    """Only predictions come from the final head, which no device has."""
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copytree(folder / "view", bare / "view")
    shutil.copy(folder / "ledger.sqlite", bare)
    rows = [row for row in msgspec.json.decode(printed, type=list[AttackRow]) if "predictions" not in row.attack]
    # intervals of fewer rows are a little narrower, since they hold together
    whole, found = (
        [msgspec.structs.replace(row, interval=(0.0, 1.0), leaks=False) for row in some]
        for some in (rows, attack_run(bare))
    )
    assert found == whole


def test_a_run_that_has_lost_its_noise_is_found_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims an epsilon of 1, and returns gradients as they are."""
    monkeypatch.setattr(SeededNoise, "release", lambda self, totals, *, grid, divisor, **_: totals * grid / divisor)
    changes = ("train.method=vafl", "train.rounds=24", "privacy.epsilon=1", "privacy.protects=labels")
    more = ("noise.where=downlink", "noise.source=seeded", "head.rule=frozen", "head.final=private")
    sets = [word for change in (*changes, *more) for word in ("--set", change)]
    _, error = invoke("train", "breast-cancer", "--record-view", "--quiet", "--out", tmp_path / "run", *sets)
    assert error is None
    out, error = invoke("attack", tmp_path / "run")
    assert isinstance(error, PrivacyRefused)
    assert error.exit_code == 4
    assert "where the claim allows 0." in str(error)
    assert "BROKEN" in out


def test_what_cannot_be_attacked_is_refused_with_a_sentence(tmp_path: Path) -> None:
    _, error = invoke("attack", tmp_path)
    assert isinstance(error, DataError)
    assert "--record-view" in str(error)
    _, error = invoke("attack", tmp_path, "--devices", "bank")
    assert isinstance(error, ConfigError)
    _, error = invoke("attack", tmp_path, "--figure", tmp_path / "scores.pdx")  # before any attack takes its minutes
    assert isinstance(error, ConfigError)
    assert "ends in .svg or .png" in str(error)


def test_a_run_between_parties_keeps_no_views_and_its_simulation_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    config = agreed_run(tmp_path / FILES[0])
    RunFolder.create(tmp_path / "server", render(config))
    _, error = invoke("attack", tmp_path / "server")
    assert isinstance(error, DataError)
    assert "no party may hold what another one holds" in str(error)
    assert "`dpzv train` with the agreed run, all parties' files and `--record-view`" in str(error)
    sets = [word for key in ("train.rounds=6", "head.refit_steps=10") for word in ("--set", key)]
    _, error = invoke("train", *FILES, "--record-view", "--quiet", "--out", tmp_path / "seen", *sets)
    assert error is None
    out, error = invoke("attack", tmp_path / "seen")
    assert error is None
    assert "labels: " in out


def test_a_score_above_the_ceiling_ends_with_the_exit_code_of_privacy(
    folder: Path, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = msgspec.json.decode(printed, type=list[AttackRow])
    monkeypatch.setattr(suite, "attack_run", lambda folder, devices: rows)
    out, error = invoke("attack", folder)
    assert error is None
    assert "BROKEN" not in out
    assert out.count("not covered") == sum(not row.covered for row in rows)
    rows[0] = msgspec.structs.replace(rows[0], broken=True)
    out, error = invoke("attack", folder)
    assert isinstance(error, PrivacyRefused)
    assert "BROKEN" in out
