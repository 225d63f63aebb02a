"""`docs/howto/first-run.md` is what a person can type, in its order, beside three CSV files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpzv.cli.main import app
from tests.first_run import commands, write_files


def typed(short: dict[str, list[str]]) -> None:
    """Type the page's commands beside generated files; some get `short` settings."""
    write_files(Path())
    found = commands()
    assert 3 <= len(found) <= 10
    assert {"rehearse", "audit"} <= {arguments[0] for arguments in found}
    for arguments in found:
        done = CliRunner().invoke(app, arguments + short.get(arguments[0], []))
        assert done.exit_code == 0, (arguments, done.output, done.exception)
    assert Path("runs/first/predictions.csv").is_file()


def test_the_commands_work_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--set", "train.rounds=2", "--set", "head.refit_steps=4", "--set", "head.rule=frozen"]
    typed({"rehearse": quick, "audit": [*quick, "--trials", "20"]})


@pytest.mark.soak
def test_a_first_run_takes_less_than_20_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    typed({})
    assert time.monotonic() - began < 20 * 60
