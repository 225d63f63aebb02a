"""The one way in which files are replaced: whole or not at all, and such that they survive a power cut.

A file that was damaged all the same is refused in one sentence when it is read (`readable`).
Files and new folders are for their owner alone unless the writer says otherwise, whatever the process's umask is.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import safetensors

from dpzv.errors import ConfigError, DataError, DiskError, DpzvError

if TYPE_CHECKING:
    import torch

__all__ = [
    "EVERYBODY",
    "Lock",
    "disk_errors",
    "holding",
    "make_folder",
    "make_zeros",
    "open_log",
    "readable",
    "refuse_shared",
    "refuse_unwritable",
    "replacing",
    "sweep",
    "sync",
    "write_atomically",
    "write_tensors",
]

REMEDY = "free space or choose another folder"
OWNER, EVERYBODY = 0o600, 0o644
"""Modes of a file: only its owner may read it, or everybody may."""


@contextmanager
def disk_errors(path: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Turn the errors of a full or unwritable disk, while `path` is written, into a sentence that ends in `remedy`."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DiskError(f"{path} could not be written ({reason}); {remedy}.") from error


@contextmanager
def readable(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Turn the errors of a `path` that is not `what` it should be, while it is read, into a sentence with a remedy."""
    try:
        yield
    except (safetensors.SafetensorError, msgspec.MsgspecError, KeyError, RuntimeError, OSError) as error:
        raise DataError(f"{path} is not {what} ({error}); {remedy}.") from None


@contextmanager
def replacing(path: Path, *, mode: int = OWNER, shared: bool = False, remedy: str = REMEDY) -> Iterator[Path]:
    """A new, empty file to write to; when the block ends without an error, it takes the place of `path`.

    A reader sees the old file or the whole new one, also after a power cut; after an error nothing is left behind. The
    new file lies in a temporary folder beside `path`, which only this user may enter, so that whatever a library leaves
    there when it is killed is found again. `shared` says that several processes may write this file at once: each then
    has a temporary folder of its own, which a killed process leaves behind. All other files have one writer and one
    temporary folder, which the next write and `sweep` remove.
    """
    own = f".{secrets.token_hex(4)}" if shared else ""
    place = path.with_name(f".{path.name}{own}.new")
    with disk_errors(path, remedy):
        make_folder(path.parent, mode)
        try:
            _remove(place)
            place.mkdir(0o700)
            new = place / path.name
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER))
            yield new
            os.chmod(new, mode)
            sync(new)
            os.replace(new, path)
            sync(path.parent)  # the new name, too, must outlast a power cut
        finally:
            _remove(place)


def refuse_unwritable(folder: Path, remedy: str = REMEDY) -> None:
    """Refuse a folder that this user can neither write to nor make; nothing is written."""
    here = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not here.is_dir() or not os.access(here, os.W_OK | os.X_OK):
        problem = "this user may not write there" if here.is_dir() else f"{here} is no folder"
        raise DiskError(f"{folder} could not be written ({problem}); {remedy}.")


def refuse_shared(path: Path) -> None:
    """Refuse a secret in a file that everybody on this machine may read or change."""
    if path.stat().st_mode & 0o006:
        raise ConfigError(
            f"{path} is secret, but everybody on this machine may read or change it; make it its owner's alone with "
            f"`chmod 600 {path}`."
        )


def write_atomically(path: Path, data: bytes, mode: int = OWNER) -> None:
    """Put `data` into `path` as `replacing` does."""
    with replacing(path, mode=mode) as new:
        new.write_bytes(data)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Put tensors into one safetensors file as `replacing` does; tensors that share memory are written separately."""
    import safetensors.torch

    apart: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        apart[name] = here.clone() if here.data_ptr() in seen else here
        seen.add(here.data_ptr())
    with replacing(path) as new:
        safetensors.torch.save_file(apart, new, metadata)


def make_zeros(path: Path, size: int, remedy: str = REMEDY) -> None:
    """A new file of `size` zero bytes at `path`, to be mapped into memory; it takes the place of one that is there.

    All of its space is taken at once: a process that writes to a mapped file on a full disk is ended without a word. A
    process that still has the old file mapped keeps it, without a name.
    """
    with disk_errors(path, remedy):
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)


def open_log(path: Path) -> int:
    """A descriptor of a file to append to, which only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER)
    os.fchmod(descriptor, OWNER)
    return descriptor


def make_folder(path: Path, mode: int = OWNER) -> None:
    """Make a folder and those above it that are missing; whoever may read a file of `mode` may enter it.

    Each new folder is synced into the one above it: if a power cut took the folder, it would take its files, too.
    """
    if path.is_dir():
        return
    make_folder(path.parent, mode)
    enter = mode | (mode & 0o444) >> 2
    try:
        path.mkdir(enter)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(enter)
    sync(path.parent)


class Lock:
    """An advisory lock on the file `place`, which has one owner; whoever else asks for it gets the error `refusal`.

    The operating system releases the lock when the process ends, however it ends; the next owner takes the file over.
    """

    def __init__(self, place: Path, refusal: DpzvError) -> None:
        self._place = place
        while True:
            self._descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # the last owner may have removed the file between the two calls; then it guards nothing
                if os.fstat(self._descriptor).st_ino == place.stat().st_ino:
                    return
            except BlockingIOError:
                os.close(self._descriptor)
                raise refusal from None
            except FileNotFoundError:
                pass
            os.close(self._descriptor)

    def close(self) -> None:
        """Release the lock; the file is removed before, so that nobody locks a file that is about to vanish."""
        with suppress(OSError):  # a file that stays guards nothing once this process has let go of it
            self._place.unlink()
        os.close(self._descriptor)


@contextmanager
def holding(folder: Path, whose: str) -> Iterator[None]:
    """Own a folder while the block runs; another process that asks for it is refused.

    `whose` says in the refusal which folder it is. What killed processes left half-written is removed first.
    """
    in_use = f"{folder}, {whose}, is in use by another process; wait for that process to end, or stop it."
    with disk_errors(folder):
        make_folder(folder)
        lock = Lock(folder / ".lock", ConfigError(in_use))
    with closing(lock):
        sweep(folder)
        yield


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written in a run's folder; call it only while nobody else writes there."""
    for place in (folder, folder / "checkpoint", folder / "weights"):
        for left in place.glob(".*.new"):
            with disk_errors(left):
                _remove(left)


def _remove(place: Path) -> None:
    """Remove a temporary folder of `replacing`, if it is there."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
