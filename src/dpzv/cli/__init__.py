"""The command line: verbs, progress, exit codes. The only place that prints."""

from __future__ import annotations

from dpzv.cli.main import main

__all__ = ["main"]
