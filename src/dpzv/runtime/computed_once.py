"""The outputs of layers that are never trained, computed once for each record.

They are kept in memory and, where the environment variable DPZV_FEATURES names a folder, in files there. `dpzv
reproduce` names one for its own runs, since a hundred of them share their records; runs that go on side by side share
the work. No other command leaves such files on a disk, since much about the records can be read off them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpzv.durable import replacing
from dpzv.models.layers import MappedFeatures
from dpzv.models.rowwise import require_rowwise

__all__ = ["FOLDER", "computed_once", "known_rows"]

FOLDER = "DPZV_FEATURES"
"""The environment variable with the folder for files; without it nothing is written."""

ROWS, PART, MOST_KEPT = 64, 2048, 64
"""Records that go through the layers at a time, records of a file, and how many sets of layers are kept in memory."""

Known = dict[bytes, NDArray[np.float32]]
"""The features [k] that some layers make of records, by the digest of a record."""


def known_rows(network: nn.Module, x_train: Tensor, x_test: Tensor, *, B: int, name: str) -> tuple[Tensor, Tensor, int]:
    """What a device needs of its records to train on and to test, and its embedding width; its network is checked."""
    known = computed_once(network, x_train)
    if known is not x_train:  # the layers that are computed once see batches of this size alone
        require_rowwise(network, _filled_up(x_train[:ROWS]), name=name)
    width = require_rowwise(network, known[: max(B, 2)], name=name)
    return known, computed_once(network, x_test), width


def computed_once(network: nn.Module, x: Tensor) -> Tensor:
    """The records `x`, or their features [n, k, 1] if nothing but the map `out` of `network` moves.

    `x` may be features already, which come back as they are.
    """
    layers_move = any(w.requires_grad and not name.startswith("out.") for name, w in network.named_parameters())
    if not isinstance(network, MappedFeatures) or layers_move or x.ndim == 3 or not len(x):
        return x
    layers = _layers(network, x)
    known, keys = _known(layers), [_digest([row]) for row in x.numpy(force=True)]
    missing = list({key: row for row, key in enumerate(keys) if key not in known}.values())
    parts = [missing[first : first + PART] for first in range(0, len(missing), PART)]
    secrets.SystemRandom().shuffle(parts)  # processes that begin together would all compute the same part
    for part in parts:
        known.update(_written(layers))
        if rows := [row for row in part if keys[row] not in known]:
            new = dict(zip([keys[row] for row in rows], _made(network.features, x[rows]), strict=True))
            _keep(layers, new)
            known.update(new)
    return torch.from_numpy(np.stack([known[key] for key in keys])[:, :, None]).to(x.device)


@torch.no_grad()
def _made(features: Callable[[Tensor], Tensor], x: Tensor) -> NDArray[np.float32]:
    made = torch.cat([features(part) for part in torch.split(_filled_up(x), ROWS)])[: len(x)]
    numbers: NDArray[np.float32] = made.numpy(force=True)
    return numbers


def _filled_up(x: Tensor) -> Tensor:
    """Records, and zeros up to a multiple of `ROWS`: only batches of this size are checked by `known_rows`."""
    return torch.cat([x, x.new_zeros(-len(x) % ROWS, *x.shape[1:])])


def _layers(network: nn.Module, x: Tensor) -> str:
    """A name for the layers before the last, for the kind of accelerator and for the shape of the records."""
    weights = [value for name, value in network.state_dict().items() if not name.startswith("out.")]
    kind = f"{x.device.type} {x.dtype} {tuple(x.shape[1:])}".encode()
    return _digest([np.frombuffer(kind, np.uint8), *(value.numpy(force=True) for value in weights)]).hex()


def _digest(arrays: Sequence[NDArray[np.generic]]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _known(layers: str) -> Known:
    """What this process knows of these layers; at first nothing."""
    if layers not in _memory:
        while len(_memory) >= MOST_KEPT:
            forgotten = next(iter(_memory))
            _memory.pop(forgotten)
            _read.difference_update({file for file in _read if file.name.startswith(forgotten)})
        _memory[layers] = _written(layers)
    return _memory[layers]


def _written(layers: str) -> Known:
    """What the files that this process has not read yet say of these layers."""
    found: Known = {}
    files = set(Path(os.environ[FOLDER]).glob(f"{layers}-*.npz")) if FOLDER in os.environ else set()
    for file in sorted(files - _read):
        with np.load(file) as part:
            found.update(zip(map(bytes, part["keys"]), part["made"], strict=True))
    _read.update(files)
    return found


def _keep(layers: str, new: Known) -> None:
    """Write a file of what is new, if a folder is named; runs go side by side, so every file has a name of its own."""
    if FOLDER in os.environ:
        keys = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
        path = Path(os.environ[FOLDER]) / f"{layers}-{secrets.token_hex(8)}.npz"
        with replacing(path) as file, file.open("wb") as out:
            np.savez(out, keys=keys, made=np.stack(list(new.values())))
        _read.add(path)


_memory: dict[str, Known] = {}
_read: set[Path] = set()
