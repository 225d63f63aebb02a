"""Messages to bytes and back: MessagePack with strict types, embeddings as raw little-endian floats.

A message of embeddings may hold any number of arrays of one shape. `float32` sends them as they are, and `float16` in
half precision. Two arrays are a pair (h_plus and h_minus, or h and h_plus), of which `float16` sends the midpoint and
then the slope (first - second) / (2*lam): the server needs the difference of two nearly equal numbers, which would be
lost between two numbers of 11 bits each. `lam` is public, so a record's bytes do not depend on other records. An answer
is float64 where its numbers belong to a batch, and float32 where each belongs to one record (vafl's gradients).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.errors import PeerError
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Message, Release

__all__ = ["FRAMING", "MAX_FRAME", "Codec"]

MAX_FRAME = 1 << 28
"""Bytes of the largest frame that is decoded; anything larger is refused unread."""

MOST_ARRAYS = 1024
"""The most arrays that any method may send in one message; of one method's messages, `Codec` knows the number."""

FRAMING = 64
"""The most bytes of a frame that are not numbers."""


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A frame: a MessagePack array of the tag and the fields.

    The order of the fields, here and below, is the wire format: moving a field changes the format.
    """


class _Fill(_Wire, tag="f"):
    m: int
    start: int
    shape: tuple[int, int]
    h: memoryview


class _Embeddings(_Wire, tag="e"):
    m: int
    position: int
    shape: tuple[int, int]
    h: Annotated[tuple[memoryview, ...], msgspec.Meta(max_length=MOST_ARRAYS)]


class _Evaluation(_Fill, tag="v"):
    """The same fields as those of a first fill."""


class _Release(_Wire, tag="r"):
    t: int
    m: int
    position: int
    Delta: bytes


_DECODER = msgspec.msgpack.Decoder(_Fill | _Embeddings | _Evaluation | _Release)


class Codec:
    """Encodes and decodes the messages of one device, whose smoothing radius `lam` is public.

    A message of embeddings has at most `arrays` arrays; each has one row or more.
    """

    def __init__(
        self, name: Literal["float32", "float16"], lam: float, *, arrays: int = 2, per_record: bool = False
    ) -> None:
        self._arrays = arrays
        self._answer = np.dtype("<f4") if per_record else np.dtype("<f8")
        self._type = np.dtype("<f4") if name == "float32" else np.dtype("<f2")
        self._half = name == "float16"
        self._lam = np.float32(lam)
        self._encoder = msgspec.msgpack.Encoder()

    def payload_bytes(self, message: Message) -> int:
        """Bytes of the numbers in a message, without the few bytes of framing around them."""
        if isinstance(message, Release):
            return message.Delta.size * self._answer.itemsize
        arrays = message.h if isinstance(message, Embeddings) else (message.h,)
        return sum(map(np.size, arrays)) * self._type.itemsize

    def longest(self, rows: int, width: int) -> int:
        """Bytes of the longest frame with arrays of `rows` rows of this width, as many as a message may have."""
        return self._arrays * rows * width * self._type.itemsize + FRAMING

    def encode(self, message: Message) -> bytes:
        """The frame of a message."""
        wire: _Wire
        if isinstance(message, Embeddings):
            wire = _Embeddings(message.m, message.position, message.h[0].shape, self._pack(message.h))
        elif isinstance(message, Release):
            wire = _Release(message.t, message.m, message.position, message.Delta.astype(self._answer).tobytes())
        else:
            kind = _Fill if isinstance(message, Fill) else _Evaluation
            wire = kind(message.m, message.start, message.h.shape, *self._pack((message.h,)))
        return self._encoder.encode(wire)

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

    def _pack(self, arrays: tuple[NDArray[np.float32], ...]) -> tuple[memoryview, ...]:
        """The bytes of each array."""
        packed = []
        if not self._half:
            for h in arrays:
                packed.append(np.ascontiguousarray(h).data)
            return tuple(packed)
        # a value beyond half precision's range becomes inf, and the server stores that row as zeros
        with np.errstate(over="ignore", invalid="ignore"):
            if len(arrays) == 2:
                first, second = arrays
                arrays = (first + second) * 0.5, (first - second) / (self._lam + self._lam)
            for h in arrays:
                packed.append(h.astype(self._type, order="C").data)
        return tuple(packed)

    def _unpack(self, parts: tuple[memoryview, ...], shape: tuple[int, int]) -> tuple[NDArray[np.float32], ...]:
        """The arrays of a message, each of this shape; none is built unless their number is right."""
        if len(parts) > self._arrays:
            raise PeerError(f"a message has at most {self._arrays} arrays, got {len(parts)}; the link is closed.")
        expected = shape[0] * shape[1] * self._type.itemsize
        arrays: list[NDArray[Any]] = []
        for data in parts:
            if min(shape) < 1 or max(shape) > MAX_FRAME or len(data) != expected:
                raise PeerError(
                    f"an array has at least one row and one column, and one of shape {shape} has {expected} bytes, "
                    f"got {len(data)}; the link is closed."
                )
            arrays.append(np.frombuffer(data, self._type).reshape(shape))
        if not self._half:
            return tuple(arrays)
        with np.errstate(over="ignore", invalid="ignore"):  # the server looks for bad values row by row
            arrays = [h.astype(np.float32) for h in arrays]
            if len(arrays) == 2:
                midpoint, slope = arrays
                arrays = [midpoint + self._lam * slope, midpoint - self._lam * slope]
        return tuple(arrays)
