"""Running the command line as a user does: a real process, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """``cli("train", "digits", ...)`` in an empty folder, one thread, no data folder of the user."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dpzv", *arguments],
            cwd=tmp_path,
            env={**os.environ, "DPZV_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run
