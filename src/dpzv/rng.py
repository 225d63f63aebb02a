"""Random numbers by name: every stream is keyed by what it is for, and no global state is touched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["numbered", "numpy_generator", "seed_of", "torch_generator"]


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed from a name such as ``(seed, "direction", m, t)``; other names give unrelated seeds.

    The text below is a format: parties on different machines must make the same seed from the same name.
    """
    names = []
    for part in parts:
        names.append(f"{type(part).__name__}:{part}")
    return int.from_bytes(hashlib.blake2b("\x1f".join(names).encode(), digest_size=8).digest(), "big") >> 1


def numbered(before: tuple[int | str, ...], after: tuple[int | str, ...] = ()) -> Callable[[int], int]:
    """``number -> seed_of(*before, number, *after)`` in a fraction of the time: what comes first is hashed once."""
    first, last = ("".join(f"{type(part).__name__}:{part}\x1f" for part in parts) for parts in (before, after))
    begun, end = hashlib.blake2b(f"{first}int:".encode(), digest_size=8), f"\x1f{last}"[:-1].encode()

    def seed(number: int) -> int:
        whole = begun.copy()
        whole.update(b"%d%b" % (number, end))
        return int.from_bytes(whole.digest(), "big") >> 1

    return seed


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """A numpy generator for the stream called `parts`."""
    return np.random.default_rng(seed_of(*parts))


def torch_generator(*parts: int | str) -> torch.Generator:
    """A torch generator for the stream called `parts`."""
    import torch

    return torch.Generator().manual_seed(seed_of(*parts))
