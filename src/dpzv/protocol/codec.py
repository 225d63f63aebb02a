"""Messages to bytes and back: MessagePack with strict types, embeddings as raw little-endian numbers.

A message of embeddings may hold any number of arrays of one shape. `float32` sends them as they are, and `float16` in
half precision. Where all arrays are one embedding at weights that are `lam` apart (`slopes`), the server needs
differences of nearly equal numbers, which would be lost between numbers of 11 bits. So `float16` and `int8` send one
embedding in half precision and then slopes: of two arrays (h_plus and h_minus, or h and h_plus) the midpoint and
(first - second) / (2*lam), and of more (h, h_1 .. h_K) the first and all (h_j - h) / lam. `float16` sends slopes in
half precision.

`int8` sends slopes as numbers of steps from -127 to 127, rounded up or down at random, so that on average the server
receives the slopes themselves. The coins come from a stream of the public seed, the device and the position; its name,
and the order of the coins in it, are a format. The scale of a record is the largest size among all its slopes, in half
precision and rounded up, and never taken over a batch. So a record's bytes follow from that record, its place in the
message and public numbers alone.

An answer is float64 where its numbers belong to a batch, and float32 where each belongs to one record (vafl's
gradients).
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.errors import PeerError
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Message, Release
from dpzv.rng import numpy_generator

__all__ = ["FRAMING", "MAX_FRAME", "Codec"]

MAX_FRAME = 1 << 28
"""Bytes of the largest frame that is decoded; anything larger is refused unread."""

FRAMING = 64
"""The most bytes of a frame that are not numbers."""

STEPS = np.float32(127)
"""Steps of a slope from 0 to its record's scale."""

SCALE = np.dtype("<f2")
"""How the scale of a record's slopes is sent."""

Arrays = tuple[NDArray[np.float32], ...]


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A frame: a MessagePack array of the tag and the fields.

    The order of the fields of all subclasses is the wire format: moving a field changes the format.
    """


class _Fill(_Wire, tag="f"):
    m: int
    start: int
    shape: tuple[int, int]
    h: memoryview


class _Embeddings(_Wire, tag="e"):
    """`h` is the first array, then all others one after the other, then (`int8`) the scales of the records."""

    m: int
    position: int
    shape: tuple[int, int]
    h: Annotated[tuple[memoryview, ...], msgspec.Meta(min_length=1, max_length=3)]


class _Evaluation(_Fill, tag="v"):
    """The same fields as those of a first fill."""


class _Release(_Wire, tag="r"):
    t: int
    m: int
    position: int
    Delta: bytes


_DECODER = msgspec.msgpack.Decoder(_Fill | _Embeddings | _Evaluation | _Release)

_EMPTY, _NOTHING = msgspec.msgpack.encode(()), msgspec.msgpack.encode(b"")
"""How a frame ends that has no arrays yet: MessagePack's list of no entries, and its bytes of length 0."""


_SIZE = operator.attrgetter("nbytes")


class Codec:
    """Encodes and decodes the messages of one device, whose smoothing radius `lam` is public.

    A message of embeddings has at most `arrays` arrays; each has one row or more. `slopes` says whether they are one
    embedding at weights that are `lam` apart; `seed` is that of the public coins that round slopes to 8 bits.
    """

    def __init__(
        self,
        name: Literal["float32", "float16", "int8"],
        lam: float,
        *,
        arrays: int = 2,
        slopes: bool = True,
        per_record: bool = False,
        seed: int = 0,
    ) -> None:
        self._arrays, self._slopes, self._seed = arrays, slopes and name != "float32", seed
        self._answer = np.dtype("<f4") if per_record else np.dtype("<f8")
        self._type = np.dtype("<f4") if name == "float32" else np.dtype("<f2")
        self._bytes = name == "int8" and slopes
        # bytes of a number in the first array, of one in the other arrays, and of a record's scale beside these others
        self._first, self._other = self._type.itemsize, 1 if self._bytes else self._type.itemsize
        self._beside = SCALE.itemsize if self._bytes else 0
        self._lam = np.float32(lam)
        self._encoder = msgspec.msgpack.Encoder()

    def payload_bytes(self, message: Message) -> int:
        """Bytes of the numbers in a message, without the few bytes of framing around them."""
        if isinstance(message, Release):
            return message.Delta.size * self._answer.itemsize
        arrays = message.h if isinstance(message, Embeddings) else (message.h,)
        rows, width, others = len(arrays[0]), int(arrays[0].shape[1]), len(arrays) - 1
        return rows * (width * (self._first + others * self._other) + (self._beside if others else 0))

    def longest(self, rows: int, width: int) -> int:
        """Bytes of the longest frame with arrays of `rows` rows of this width, as many as a message may have."""
        return rows * (width * (self._first + (self._arrays - 1) * self._other) + self._beside) + FRAMING

    def encode(self, message: Message, before: bytes = b"") -> bytes:
        """The frame of a message, after the bytes `before`.

        MessagePack writes everything but the arrays, whose bytes are then copied once: they are nearly all of a frame.
        """
        if isinstance(message, Release):
            wire = _Release(message.t, message.m, message.position, message.Delta.astype(self._answer).tobytes())
            return before + self._encoder.encode(wire)
        if isinstance(message, Embeddings):
            start = self._encoder.encode(_Embeddings(message.m, message.position, message.h[0].shape, ()))
            parts = self._pack(message.h, message)
            start = start[: -len(_EMPTY)] + bytes([_EMPTY[0] + len(parts)])
        else:
            kind = _Fill if isinstance(message, Fill) else _Evaluation
            start = self._encoder.encode(kind(message.m, message.start, message.h.shape, memoryview(b"")))
            start, parts = start[: -len(_NOTHING)], self._pack((message.h,))
        frame: list[bytes | memoryview] = [before, start]
        for part in parts:
            size = sum(map(_SIZE, part))
            width, tag = (1, b"\xc4") if size < 1 << 8 else (2, b"\xc5") if size < 1 << 16 else (4, b"\xc6")
            frame += (tag, size.to_bytes(width, "big"), *part)  # as MessagePack writes bytes
        return b"".join(frame)

    def decode(self, frame: bytes | memoryview) -> Message:
        """The message of a frame; anything malformed is a `PeerError`, whatever its bytes."""
        if len(frame) > MAX_FRAME:
            raise PeerError(f"a frame has at most {MAX_FRAME} bytes, got {len(frame)}; the link is closed.")
        try:
            wire = _DECODER.decode(frame)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise PeerError(f"a frame could not be decoded ({str(error)[:200]}); the link is closed.") from None
        if isinstance(wire, _Embeddings):
            return Embeddings(wire.m, wire.position, self._unpack(wire.h, wire.shape))
        if isinstance(wire, _Fill):
            kind = Evaluation if isinstance(wire, _Evaluation) else Fill
            return kind(wire.m, wire.start, *self._unpack((wire.h,), wire.shape))
        size, each = len(wire.Delta), self._answer.itemsize
        if not size or size % each:
            raise PeerError(f"a release holds numbers of {each} bytes each, got {size} bytes; the link is closed.")
        numbers = np.frombuffer(wire.Delta, self._answer)
        if not np.isfinite(numbers).all():
            raise PeerError("a release must hold finite numbers only, got others; the link is closed.")
        return Release(wire.t, wire.m, wire.position, numbers.astype(np.float64))

    def _pack(self, arrays: Arrays, batch: Embeddings | None = None) -> list[list[memoryview]]:
        """The bytes of a single array, or the parts of `_Embeddings.h` for a batch; each part is one or more pieces."""
        first, *others = arrays
        # a value beyond half precision's range becomes inf, and the server stores that row as zeros
        with np.errstate(over="ignore", invalid="ignore"):
            if self._slopes and len(others) == 1:
                first, others = (first + others[0]) * 0.5, [(first - others[0]) / (self._lam + self._lam)]
            elif self._slopes and others:
                slopes = np.stack(others)
                slopes -= first
                slopes /= self._lam
                others = list(slopes)
            if self._bytes and batch is not None and others:
                whole = np.stack(others) if len(others) == 1 else slopes
                steps, scales = slopes_to_bytes(whole, self._seed, batch.m, batch.position)
                return [[np.ascontiguousarray(first, self._type).data], [steps], [scales]]
            parts: list[list[memoryview]] = [[], []]
            for i, h in enumerate((first, *others)):
                parts[i > 0].append(np.ascontiguousarray(h, self._type).data)
        return parts if others else parts[:1]

    def _unpack(self, parts: tuple[memoryview, ...], shape: tuple[int, int]) -> Arrays:
        """The arrays of a message, each of this shape; none is built unless their number and sizes are right."""
        one = shape[0] * shape[1]
        others = len(parts[1]) // (one * self._other) if len(parts) > 1 and one > 0 else 0
        sizes = [one * self._first, others * one * self._other, shape[0] * self._beside]
        right = sizes[: 1 + (others > 0) * (2 if self._bytes else 1)]
        if others >= self._arrays or min(shape) < 1 or max(shape) > MAX_FRAME or right != list(map(len, parts)):
            raise PeerError(
                f"a message has 1 to {self._arrays} arrays, each of at least one row and one column, got "
                f"{sum(map(len, parts))} bytes for arrays of shape {shape}; the link is closed."
            )
        first: NDArray[Any] = np.frombuffer(parts[0], self._type).reshape(shape)
        rest: NDArray[Any] = first[:0]
        if others and self._bytes:
            rest = slopes_from_bytes(parts[1], parts[2], (others, *shape))
        elif others:
            rest = np.frombuffer(parts[1], self._type).reshape(others, *shape)
        if self._first == 4:
            return first, *rest
        return self._from_halves(first.astype(np.float32), rest.astype(np.float32))

    def _from_halves(self, first: NDArray[np.float32], others: NDArray[np.float32]) -> Arrays:
        """The arrays that `_pack` turned into an embedding and (where there are any) slopes."""
        if not (self._slopes and len(others)):
            return first, *others
        with np.errstate(over="ignore", invalid="ignore"):  # the server looks for bad values row by row
            others *= self._lam
            if len(others) == 1:
                return first + others[0], first - others[0]
            others += first
        return first, *others


def slopes_to_bytes(slopes: NDArray[np.float32], seed: int, m: int, position: int) -> tuple[memoryview, memoryview]:
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


def slopes_from_bytes(steps: memoryview, scales: memoryview, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """The slopes [K, B, k] as the server takes them."""
    step = np.frombuffer(scales, SCALE).astype(np.float32) / STEPS
    with np.errstate(invalid="ignore"):  # 0 steps of an infinite scale
        return np.frombuffer(steps, np.int8).reshape(shape) * step[:, None]
