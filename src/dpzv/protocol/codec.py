"""Messages to bytes and back: MessagePack with strict types, embeddings as raw little-endian floats.

`float32` sends h_plus and h_minus as they are. `float16` sends the midpoint and the slope
(h_plus - h_minus) / (2*lam) in half precision: the server needs the difference of two nearly equal
numbers, which halves of 11 bits each would drown. `lam` is public, so no record moves another's bytes. Answers are
float64 where they are numbers of a batch, and float32 where they are numbers of a record (vafl's gradients).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.errors import PeerError
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Message, Release

__all__ = ["MAX_FRAME", "Codec"]

MAX_FRAME = 1 << 28
"""Bytes of the largest frame that is decoded; anything larger is refused unread."""


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    pass


class _Fill(_Wire, tag="f"):
    m: int
    start: int
    shape: tuple[int, int]
    h: memoryview


class _Embeddings(_Wire, tag="e"):
    m: int
    position: int
    shape: tuple[int, int]
    h: tuple[memoryview, ...]


class _Evaluation(_Wire, tag="v"):
    m: int
    start: int
    shape: tuple[int, int]
    h: memoryview


class _Release(_Wire, tag="r"):
    t: int
    m: int
    position: int
    Delta: bytes


_DECODER = msgspec.msgpack.Decoder(_Fill | _Embeddings | _Evaluation | _Release)


class Codec:
    """Encodes and decodes the messages of one device, whose smoothing radius `lam` is public."""

    def __init__(self, name: Literal["float32", "float16"], lam: float, *, per_record: bool = False) -> None:
        self._answer = np.dtype("<f4") if per_record else np.dtype("<f8")
        self._type = np.dtype("<f4") if name == "float32" else np.dtype("<f2")
        self._half = name == "float16"
        self._lam = np.float32(lam)
        self._encoder = msgspec.msgpack.Encoder()

    def row_bytes(self, width: int) -> int:
        """Payload bytes of one embedding, without framing."""
        return width * self._type.itemsize

    def embeddings_bytes(self, B: int, width: int, arrays: int) -> int:
        """Payload bytes of one `Embeddings` message, without its few bytes of framing."""
        return arrays * B * self.row_bytes(width)

    def answer_bytes(self, n: int) -> int:
        """Payload bytes of a `Release` of n numbers."""
        return n * self._answer.itemsize

    def encode(self, message: Message) -> bytes:
        """The frame of a message."""
        wire: _Wire
        if isinstance(message, Embeddings):
            arrays = message.h
            if self._half and len(arrays) == 2:
                with np.errstate(over="ignore", invalid="ignore"):
                    arrays = (arrays[0] + arrays[1]) * 0.5, (arrays[0] - arrays[1]) / (self._lam + self._lam)
            packed = tuple(self._pack(h) for h in arrays)
            wire = _Embeddings(message.m, message.position, _shape(arrays[0]), packed)
        elif isinstance(message, Fill):
            wire = _Fill(message.m, message.start, _shape(message.h), self._pack(message.h))
        elif isinstance(message, Evaluation):
            wire = _Evaluation(message.m, message.start, _shape(message.h), self._pack(message.h))
        else:
            wire = _Release(message.t, message.m, message.position, message.Delta.astype(self._answer).tobytes())
        return self._encoder.encode(wire)

    def decode(self, frame: bytes | memoryview) -> Message:
        """The message of a frame; anything malformed is a `PeerError`, whatever its bytes."""
        if len(frame) > MAX_FRAME:
            raise PeerError(f"a frame has at most {MAX_FRAME} bytes, got {len(frame)}; the peer is closed.")
        try:
            wire = _DECODER.decode(frame)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise PeerError(f"a frame could not be decoded ({error}); the peer is closed.") from None
        if isinstance(wire, _Embeddings):
            arrays = tuple(self._unpack(h, wire.shape) for h in wire.h)
            if self._half and len(arrays) == 2:
                with np.errstate(over="ignore", invalid="ignore"):
                    arrays = arrays[0] + self._lam * arrays[1], arrays[0] - self._lam * arrays[1]
            return Embeddings(wire.m, wire.position, arrays)
        if isinstance(wire, _Fill):
            return Fill(wire.m, wire.start, self._unpack(wire.h, wire.shape))
        if isinstance(wire, _Evaluation):
            return Evaluation(wire.m, wire.start, self._unpack(wire.h, wire.shape))
        return Release(wire.t, wire.m, wire.position, self._numbers(wire.Delta))

    def _pack(self, h: NDArray[np.float32]) -> memoryview:
        if h.dtype == self._type:
            return np.ascontiguousarray(h).data
        # a value beyond half precision's range becomes inf, and the server stores that row as zeros
        with np.errstate(over="ignore"):
            return h.astype(self._type, order="C").data

    def _numbers(self, data: bytes) -> NDArray[np.float64]:
        if not data or len(data) % self._answer.itemsize:
            raise PeerError(f"a release has numbers of {self._answer.itemsize} bytes, got {len(data)} bytes; closed.")
        numbers = np.frombuffer(data, self._answer)
        if not np.isfinite(numbers).all():
            raise PeerError("a release must be finite numbers, got others; the peer is closed.")
        return numbers.astype(np.float64)

    def _unpack(self, data: memoryview, shape: tuple[int, int]) -> NDArray[np.float32]:
        expected = shape[0] * shape[1] * self._type.itemsize
        if min(shape) < 0 or max(shape) > MAX_FRAME or len(data) != expected:
            raise PeerError(f"an array of shape {shape} has {expected} bytes, got {len(data)}; closed.")
        values: NDArray[Any] = np.frombuffer(data, self._type).reshape(shape)
        if not self._half:
            return values
        with np.errstate(invalid="ignore"):  # a value that is not a number is dealt with later, row by row
            return values.astype(np.float32)


def _shape(h: NDArray[np.float32]) -> tuple[int, int]:
    return h.shape[0], h.shape[1]
