"""Run folders as they are on disk, finished or not: settings, lines of metrics, and the summary once there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dpzv.durable import readable
from dpzv.errors import ConfigError
from dpzv.validate import toml_of

__all__ = ["RunRecord", "folders_at", "read_outcome", "read_runs"]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. `settings` are by dotted key, and `summary` is `None` until the run is finished."""

    name: str
    settings: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None

    @property
    def method(self) -> str:
        """The method that trained it."""
        return str((self.summary or {}).get("method") or self.settings.get("train.method", ""))

    @property
    def rounds(self) -> int:
        """The last round that is known of."""
        last = self.summary or (self.metrics[-1] if self.metrics else {})
        return int(last.get("rounds", last.get("round", 0)))


def folders_at(places: Sequence[Path]) -> list[Path]:
    """The run folders at and below `places`, each once, in the order of their names; a device's view is no run.

    Raises `ConfigError` where a place does not exist.
    """
    found: dict[Path, Path] = {}
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"expected the folder of a run, or one with runs in it, got {place}, which is no folder.")
        for folder, inner, files in os.walk(place):
            inner.sort()
            if "config.toml" in files and "view.json" not in files:
                found.setdefault(Path(folder).resolve(), Path(folder))
    return list(found.values())


def read_runs(places: Sequence[Path]) -> list[RunRecord]:
    """The records of all runs at and below `places`, which may still go on; their names are as short as can be."""
    folders = folders_at(places)
    parts = [folder.resolve().parts for folder in folders]
    shared = 0
    while len(parts) > 1 and all(len(own) > shared + 1 and own[shared] == parts[0][shared] for own in parts):
        shared += 1
    names = ["/".join(own[shared:]) if len(parts) > 1 else own[-1] for own in parts]
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def read_outcome(folder: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The summary of the run in `folder`, `None` until it is finished, and its lines of metrics, if there are any.

    A line that is being written, the last, is left for the next time.
    """
    metrics, summary = folder / "metrics.jsonl", folder / "summary.json"
    whole, _, _ = metrics.read_bytes().rpartition(b"\n") if metrics.exists() else (b"", b"", b"")
    found = msgspec.json.decode(summary.read_bytes()) if summary.exists() else None
    return found, [msgspec.json.decode(line) for line in whole.splitlines()]


def _read(folder: Path, name: str) -> RunRecord:
    with readable(folder, "the folder of a run that can be read", "leave it out"):
        settings = dict(_flat(toml_of((folder / "config.toml").read_bytes(), str(folder / "config.toml")), ""))
        summary, metrics = read_outcome(folder)
    return RunRecord(name, settings, metrics, summary)


def _flat(tree: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value
