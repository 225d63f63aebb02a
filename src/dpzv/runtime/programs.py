"""Shared by programs that train no run, but write a summary like one, so that a grid can start them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.durable import make_folder, write_atomically
from dpzv.errors import DpzvError

__all__ = ["config_in", "leave_summary", "run_program"]


def config_in(file: Path) -> Config:
    """The configuration that a program is given."""
    return configuration.parse(msgspec.toml.decode(file.read_bytes()))


def leave_summary(folder: Path, config: Config, summary: dict[str, Any]) -> None:
    """Write configuration and summary as a run does; JSON has no infinity, so such a figure becomes `None`."""
    finite = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in summary.items()}
    make_folder(folder)
    write_atomically(folder / "config.toml", configuration.render(config).encode())
    write_atomically(folder / "summary.json", msgspec.json.encode({"schema": 1, **finite}))


def run_program(main: Callable[..., int | None]) -> None:
    """Run `main` with the paths of the command line and end with its exit code; a refusal is one sentence."""
    try:
        sys.exit(main(*map(Path, sys.argv[1:])))
    except DpzvError as error:
        sys.stderr.write(f"dpzv: {error}\n")
        sys.exit(error.exit_code)
