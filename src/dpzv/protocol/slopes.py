"""Slopes in 8 bits: numbers of steps from -127 to 127, rounded up or down at random, with a scale for each record.

The scale of a record is the largest size among all its slopes, in half precision and rounded up. It is never taken over
a batch, so a record's bytes follow from that record, its place in the message and public coins alone. The coins come
from a stream of the public seed, the device and the position; its name, and the order of the coins in it, are a format.
On average over the coins the server receives the slopes themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpzv.rng import numpy_generator

__all__ = ["SCALE", "from_bytes", "to_bytes"]

STEPS = np.float32(127)
"""Steps of a slope from 0 to its record's scale."""

SCALE = np.dtype("<f2")
"""How the scale of a record is sent."""


def to_bytes(slopes: NDArray[np.float32], seed: int, m: int, position: int) -> tuple[memoryview, memoryview]:
    """The bytes of `slopes` [K, B, k] of device m's batch at `position`, and those of the B scales.

    A record with a slope that is not finite, or is beyond half precision, gets a scale that is not finite. Then none of
    its numbers is finite at the server, which stores that row as zeros.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        largest = np.abs(slopes).max(axis=(0, 2))
        scales = largest.astype(SCALE)
        scales = np.where(scales < largest, np.nextafter(scales, SCALE.type(np.inf)), scales).astype(SCALE)
        factor = STEPS / scales.astype(np.float32)
        factor[~np.isfinite(factor)] = 0.0  # a record without slopes, or with one that is not finite
        steps = slopes * factor[:, None]
        steps += numpy_generator(seed, "codec", m, position).random(slopes.shape, np.float32)
        np.floor(steps, out=steps)
        np.clip(steps, -STEPS, STEPS, out=steps)
        steps[:, factor == 0] = 0.0
    return steps.astype(np.int8).data, scales.data


def from_bytes(steps: memoryview, scales: memoryview, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """The slopes [K, B, k] as the server takes them."""
    step = np.frombuffer(scales, SCALE).astype(np.float32) / STEPS
    with np.errstate(invalid="ignore"):  # 0 steps of an infinite scale
        return np.frombuffer(steps, np.int8).reshape(shape) * step[:, None]
