"""The one way in which files are replaced: whole or not at all, and such that they survive a power cut."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors

from dpzv.errors import DiskError

if TYPE_CHECKING:
    import torch

__all__ = ["disk_errors", "replacing", "write_atomically", "write_tensors"]

REMEDY = "free space or choose another --out"


@contextmanager
def disk_errors(path: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Turn the errors of a full or unwritable disk, while `path` is written, into a sentence that ends in `remedy`."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DiskError(f"{path} could not be written ({reason}); {remedy}.") from error


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, shared: bool = False, remedy: str = REMEDY) -> Iterator[Path]:
    """A new, empty file beside `path` to write to; when the block ends without an error, it takes the place of `path`.

    A reader sees the old file or the whole new one, also after a power cut; after an error nothing is left behind.
    `mode` holds from the first byte on, less the process's umask. `shared` says that several processes may write this
    file at once: each then has a temporary name of its own, which a killed process leaves behind. All other files
    have one writer and one temporary name, which the next write uses again.
    """
    own = f".{secrets.token_hex(4)}" if shared else ""
    new = path.with_name(f".{path.name}{own}.new")
    with disk_errors(path, remedy):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            new.unlink(missing_ok=True)  # one that a killed process left may be open to more users than `mode` allows
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
            yield new
            _sync(new)
            os.replace(new, path)
            _sync(path.parent)  # the new name, too, must outlast a power cut
        finally:
            new.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
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


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
