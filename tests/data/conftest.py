"""What several tests of data need: an npm of our own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def put_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that makes the given Python lines the only `npm` there is."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(body: str) -> None:
        program = tmp_path / "npm"
        program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{body}\n")
        program.chmod(0o755)

    return put
