"""Running the command line: inside this process where only words and exit codes matter, which is fast."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpzv.cli import main

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``cli("train", "digits", ...)`` in an empty folder without the user's data: output and exit code."""
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["dpzv", *arguments])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code: int | str | None = 0
            except SystemExit as stop:
                code = stop.code
        return subprocess.CompletedProcess(list(arguments), int(code or 0), out.getvalue(), err.getvalue())

    return run
