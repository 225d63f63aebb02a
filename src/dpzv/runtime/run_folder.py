"""The run folder: what a run leaves behind, written so that an unfinished run cannot be mistaken for a finished one.

    config.toml  metrics.jsonl  transcript.jsonl  ledger.sqlite  checkpoint/  weights/  summary.json  (view/)

`summary.json` is written last and atomically: its presence means finished. Only the owner may read these files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.durable import (
    disk_errors,
    holding,
    make_folder,
    make_zeros,
    open_log,
    readable,
    sweep,
    sync,
    write_atomically,
)
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.runtime.agreement import changed
from dpzv.validate import toml_of

__all__ = ["RunFolder"]


class RunFolder:
    """A run's files. Use as a context manager; the two logs are append-only and cut back on resume."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten = b""  # what config.toml will be, once the run is opened
        self._metrics: IO[bytes] | None = None
        self._transcript: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, config_toml: str) -> Self:
        """A new folder; refuses one that already holds a run, or what is left of one."""
        if (path / "config.toml").exists():
            state = "finished" if (path / "summary.json").exists() else "unfinished"
            raise ConfigError(
                f"{path} already holds a {state} run; choose another folder for a new run. A run that was begun on the "
                f"command line goes on by `dpzv resume {path}`."
            )
        folder = cls(path)
        if folder.traces:
            raise PrivacyRefused(
                f"{path} holds {', '.join(folder.traces)} of a run whose config.toml is missing, so what it has spent "
                "is not known; put the missing files back, or choose another folder for a new run."
            )
        with disk_errors(path):
            make_folder(path)
        write_atomically(path / "config.toml", config_toml.encode())
        return folder

    @classmethod
    def existing(cls, path: Path) -> Self:
        """The folder of a run that was started before."""
        if not (path / "config.toml").is_file():
            raise ConfigError(f"{path} holds no run (no config.toml); give the folder of `dpzv train --out`.")
        return cls(path)

    def scratch(self, name: str, shape: tuple[int, int]) -> NDArray[np.float32]:
        """Zeros in a file of this folder whose `name` is removed at once; its pages need not stay in main memory."""
        path, mapped = self.path / name, (max(shape[0], 1), shape[1])  # an empty file cannot be mapped
        make_zeros(path, 4 * mapped[0] * mapped[1])  # a float32 has 4 bytes
        rows = np.memmap(path, np.float32, "r+", shape=mapped)
        path.unlink()
        return rows[: shape[0]]

    @classmethod
    def of_run(cls, path: Path, config: Config) -> Self:
        """The folder for a run of `config`, new or that of the same run; refuses other agreed settings.

        What is this party's own, such as the number of threads, may change from start to start. Nothing is written
        before the ledger has admitted the run, so a start that is refused leaves the folder as it was.
        """
        folder = cls(path)
        if (path / "config.toml").exists() and (changes := changed(folder.config(), config)):
            raise ConfigError(
                f"the run in {path} began with {changes}; give all parties the settings it began with, or choose "
                "another `out` for a new run."
            )
        folder._unwritten = configuration.render(config).encode()
        return folder

    def config(self) -> Config:
        """The configuration that the run was started with."""
        path = self.path / "config.toml"
        try:
            return configuration.parse(toml_of(path.read_bytes(), str(path)))
        except ConfigError as error:
            raise ConfigError(
                f"{path} must be what the run was started with, but it was changed or damaged ({error}); put back what "
                "was there, or start a new run."
            ) from None

    def __enter__(self) -> Self:
        sweep(self.path)  # whoever enters holds the ledger, so that nobody else writes here
        if self._unwritten:
            write_atomically(self.path / "config.toml", self._unwritten)
        with disk_errors(self.path):
            self._metrics = os.fdopen(open_log(self.path / "metrics.jsonl"), "ab")
            self._transcript = os.fdopen(open_log(self.path / "transcript.jsonl"), "ab")
            sync(self.path)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in (self._metrics, self._transcript):
            # an error that leaves the block must not be hidden by a second failure of the same disk
            with suppress(OSError) if kind is not None else nullcontext():
                if file is not None:
                    file.close()

    def held(self) -> AbstractContextManager[None]:
        """Own the folder inside the block; refuses a folder that another process owns."""
        return holding(self.path, "the folder of a run")

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint is, if there is one."""
        return self.path / "checkpoint" / "state.safetensors"

    @property
    def traces(self) -> list[str]:
        """Names of what a run leaves behind once it has a ledger."""
        names = ("metrics.jsonl", "transcript.jsonl", "checkpoint", "weights", "summary.json")
        return [name for name in names if (self.path / name).exists()]

    @property
    def tests(self) -> Path:
        """Where the last test embeddings are, once the devices have been told that the run is finished."""
        return self.path / "checkpoint" / "tests.safetensors"

    @property
    def untrained(self) -> Path:
        """Where the embeddings of the devices as they started are, until the run is finished."""
        return self.path / "checkpoint" / "untrained.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the run wrote its summary."""
        return (self.path / "summary.json").exists()

    def metric(self, line: Mapping[str, Any]) -> None:
        """Append a line of metrics, visible at once to whoever watches the file."""
        assert self._metrics is not None
        with disk_errors(self.path / "metrics.jsonl"):
            self._metrics.write(msgspec.json.encode(line) + b"\n")
            self._metrics.flush()

    def transcript(self, t: int, m: int, Delta: NDArray[np.float64], frame_xxh3: bytes) -> None:
        """Append a release to the transcript: one number as a hex float, several as the hash of their bytes.

        The order of the keys in a line is a format, since transcripts are compared byte for byte.
        """
        assert self._transcript is not None
        exact = float(Delta[0]).hex() if len(Delta) == 1 else "sha256:" + hashlib.sha256(Delta.tobytes()).hexdigest()
        line = f'{{"t":{t},"m":{m},"Delta":"{exact}","frame_xxh3":"{frame_xxh3.hex()}"}}\n'
        try:
            self._transcript.write(line.encode())
        except OSError as error:  # entering a context in every round would cost more than the line
            with disk_errors(self.path / "transcript.jsonl"):
                raise error

    def lengths(self) -> tuple[int, int]:
        """Bytes of both logs, after writing them out: the point a checkpoint goes back to."""
        lengths = []
        for file in (self._metrics, self._transcript):
            assert file is not None
            with disk_errors(self.path):
                file.flush()
                os.fsync(file.fileno())
                lengths.append(file.tell())
        return lengths[0], lengths[1]

    def cut(self, lengths: tuple[int, int]) -> None:
        """Cut both logs back to `lengths`."""
        for file, length in zip((self._metrics, self._transcript), lengths, strict=True):
            assert file is not None
            with disk_errors(self.path):
                file.truncate(length)
                file.seek(length)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write summary.json: the run is finished."""
        text = msgspec.json.format(msgspec.json.encode(values), indent=2)
        write_atomically(self.path / "summary.json", text + b"\n")

    def read_summary(self) -> dict[str, Any]:
        """The summary of a finished run."""
        path = self.path / "summary.json"
        with readable(
            path, "the summary of a finished run", "put back the one that the run wrote, or its whole folder"
        ):
            summary: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        return summary
