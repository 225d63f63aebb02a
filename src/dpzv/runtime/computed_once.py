"""What layers that never move make of records: computed once for each record.

It is kept in memory and, where the environment variable DPZV_FEATURES names a folder, in files there. `dpzv reproduce`
names one for its own runs, since a hundred of them share their records. Nothing else leaves such files on a disk: they
tell much of what the records say.
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
    if known is not x_train:  # the layers before it see no other batches
        require_rowwise(network, x_train[:ROWS], name=name)
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
    for first in range(0, len(missing), PART):
        rows = missing[first : first + PART]
        new = dict(zip([keys[row] for row in rows], _made(network.features, x[rows]), strict=True))
        _keep(layers, new)
        known.update(new)
    return torch.from_numpy(np.stack([known[key] for key in keys])[:, :, None]).to(x.device)


@torch.no_grad()
def _made(features: Callable[[Tensor], Tensor], x: Tensor) -> NDArray[np.float32]:
    # the last part is filled up: the rows of a batch of another size would take a path that nobody checked
    filled = torch.cat([x, x.new_zeros(-len(x) % ROWS, *x.shape[1:])])
    made = torch.cat([features(part) for part in torch.split(filled, ROWS)])[: len(x)]
    numbers: NDArray[np.float32] = made.numpy(force=True)
    return numbers


def _layers(network: nn.Module, x: Tensor) -> str:
    """A name for the layers before the map, for the kind of accelerator and for the records they take."""
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
    """What is known of these layers, in memory and in files."""
    if layers not in _memory:
        while len(_memory) >= MOST_KEPT:
            _memory.pop(next(iter(_memory)))
        _memory[layers] = {}
        for file in sorted(Path(os.environ[FOLDER]).glob(f"{layers}-*.npz")) if FOLDER in os.environ else []:
            with np.load(file) as part:
                made = part["made"].reshape(len(part["keys"]), -1)  # some files have a third dimension
                _memory[layers].update(zip(map(bytes, part["keys"]), made, strict=True))
    return _memory[layers]


def _keep(layers: str, new: Known) -> None:
    """Write a file of what is new, if a folder is named; runs go side by side, so every file has a name of its own."""
    if FOLDER in os.environ:
        keys = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
        path = Path(os.environ[FOLDER]) / f"{layers}-{secrets.token_hex(8)}.npz"
        with replacing(path) as file, file.open("wb") as out:
            np.savez(out, keys=keys, made=np.stack(list(new.values())))


_memory: dict[str, Known] = {}
