"""What parties say to each other besides the messages of `protocol/`: hello, who is who, alignment, requests, goodbye.

A frame begins with one byte, which says what follows (`MESSAGE`, `RELEASE` or `CONTROL`). The rest is MessagePack. A
malformed frame raises `PeerError`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.psi import POINT_BYTES
from dpzv.errors import PeerError
from dpzv.network.feature_records import Digests, OwnIds
from dpzv.privacy.ledger_checks import RECEIPT_BYTES
from dpzv.protocol.codec import MAX_FRAME, Codec
from dpzv.protocol.messages import Message, Release
from dpzv.runtime.agreement import agreed
from dpzv.version import VERSION

__all__ = [
    "BATCHES",
    "CONTROL",
    "HELLO_BYTES",
    "MESSAGE",
    "MOST_IDS",
    "PART",
    "POINTS",
    "PROTOCOL",
    "RELEASE",
    "ROWS",
    "Ask",
    "Control",
    "Counted",
    "Done",
    "Gathered",
    "Hello",
    "Hidden",
    "ListPiece",
    "Receipted",
    "Rows",
    "Stop",
    "Welcome",
    "agreed_hash",
    "hello",
    "pack",
    "pack_release",
    "pieces",
    "protocol_of",
    "shown",
    "streamed",
    "unpack",
]

MAX_HELLO = 1 << 14
"""The most bytes of a hello of any version."""

PART = 1 << 18
"""Bytes of the longest control frame, which every transport sends whole; longer frames of messages may go in parts."""

BATCHES = 2
"""A device sends test embeddings in parts of this many batches, which are about as much work as one or two rounds."""

PIECE = PART - 64
"""Bytes of every piece of a list but the last; its frame then has at most `PART` bytes. It is a format of the wire."""

MOST_IDS = 1 << 26
"""The most ids of one device, and the most records of one prediction: the server keeps up to 1 GiB for a device."""

ROWS = np.dtype("<i8")
"""How row numbers are sent."""

POINTS = np.dtype(f"V{POINT_BYTES}")
"""How hidden ids are sent."""

HELLO_BYTES = 4096
"""Bytes of the longest frame that a peer may send before it has said hello."""

MESSAGE, RELEASE, CONTROL = b"m", b"r", b"c"
"""The first byte of a frame says what follows: a message of `protocol/`, a receipt and the release that it is for, or a
control message. It is a format of the wire."""

PROTOCOL = 4
"""The version of what is said here; parties with different numbers refuse each other."""

Word = Annotated[str, msgspec.Meta(max_length=100)]
"""A version, a hash or the name of a run."""

Sentence = Annotated[str, msgspec.Meta(max_length=2000)]
Count = Annotated[int, msgspec.Meta(ge=0)]
NOTHING = Digests()
"""The digests of a device that says nothing of its encoding and records."""


class _Control(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A control message. Its tag and the order of its fields are a format of the wire; a change raises `PROTOCOL`."""


class Hello(_Control, frozen=True, tag="hello"):
    """Device -> server, first of all: versions, the hash of the agreed configuration, and how far its weights are.

    `run_id` is that of the run its weights belong to; empty if it has none yet. `t` and `receipt` are those of the last
    release in its weights; 0 and empty if there is none. `ids` is how many hashed ids it has, and `ids_sha256` names
    them, so that a changed file is noticed; `digests` says what its weights mean: its encoding and its records.
    """

    version: Word
    protocol: int
    config_hash: Word
    run_id: Word
    position: int
    t: int
    receipt: Annotated[bytes, msgspec.Meta(max_length=RECEIPT_BYTES)]
    ids: Count
    ids_sha256: Word
    digests: Digests = NOTHING


class Welcome(_Control, frozen=True, tag="welcome"):
    """Server -> device: its number, the run, and whether the server still needs its hashed ids."""

    m: int
    run_id: Word
    mode: Literal["train", "predict"]
    needs_ids: bool


class ListPiece(_Control, frozen=True, tag="piece"):
    """Both directions: a piece of a list whose length was said before; `start` bytes of the list came before it.

    A device sends the keyed hashes of its record ids, 16 bytes each, in the order of its file, or what stands for them
    when ids are hidden. The server sends row numbers in that list, int64 with the lowest byte first. When ids are
    hidden, points go both ways, 32 bytes each.
    """

    start: Count
    data: bytes


class Hidden(_Control, frozen=True, tag="hidden"):
    """Server -> device: its hidden ids follow, `ids` in all; the device hides each piece too, and sends it back."""

    ids: Count


class Rows(_Control, frozen=True, tag="rows"):
    """Server -> device: so many of its rows are trained on and tested on; their numbers follow, in the common order.

    `mu_start` is the mu that a private start of this device may cost; after earlier runs on the records it is smaller.
    """

    train: Count
    test: Count
    mu_start: float = math.inf


class Ask(_Control, frozen=True, tag="ask"):
    """Server -> device: send the first fill, begin the rounds, send test embeddings, or predict.

    `rows` is how many records a prediction is for, whose row numbers follow. `start` is the train record from which the
    fill goes on.
    """

    what: Literal["fill", "rounds", "evaluate", "predict"]
    rows: Count = 0
    start: int = 0


class Done(_Control, frozen=True, tag="done"):
    """Device -> server: all of the fill, or of the embeddings asked for, was sent."""

    what: Literal["fill", "evaluate", "predict"]


class Stop(_Control, frozen=True, tag="stop"):
    """Both directions: the goodbye. A stream that ends without it ended by accident.

    `final`: the run is over, do not come back. `refused`: do not come back unchanged, you would be refused again.
    """

    reason: Sentence
    final: bool
    refused: bool = False


class Receipted(msgspec.Struct, frozen=True):
    """Server -> device: a release, and the receipt by which the device can show later that it was sent."""

    release: Release
    receipt: bytes


Control = Hello | Welcome | ListPiece | Hidden | Rows | Ask | Done | Stop

_DECODER = msgspec.msgpack.Decoder(Control)
_ENCODER = msgspec.msgpack.Encoder()


def pack(control: Control) -> bytes:
    """The frame of a control message."""
    return CONTROL + _ENCODER.encode(control)


def pack_release(codec: Codec, release: Release, receipt: bytes) -> bytes:
    """The frame of a release with its receipt."""
    return RELEASE + receipt + codec.encode(release)


def protocol_of(frame: bytes) -> int | None:
    """The protocol that a hello of any version names, and `None` if the frame is no hello.

    All versions begin a hello with its tag, the version and the protocol, in this order.
    """
    if len(frame) > MAX_HELLO or frame[:1] != CONTROL:
        return None
    try:
        words = msgspec.msgpack.decode(memoryview(frame)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    hello = isinstance(words, list) and len(words) > 2 and words[0] == "hello" and isinstance(words[2], int)
    return int(words[2]) if hello else None


def unpack(codec: Codec | None, frame: bytes) -> Control | Message | Receipted:
    """What a frame says; without a codec only control messages are allowed."""
    kind, body = frame[:1], memoryview(frame)[1:]
    most = MAX_FRAME if kind in (MESSAGE, RELEASE) else PART
    if len(frame) > most:
        raise PeerError(f"a frame of this kind has at most {most} bytes, got {len(frame)}; the link is closed.")
    if kind == MESSAGE and codec is not None:
        return codec.decode(body)
    if kind == RELEASE and codec is not None:
        release = codec.decode(body[RECEIPT_BYTES:])
        if not isinstance(release, Release):
            raise PeerError(f"a receipt is for a release, got {type(release).__name__}; the link is closed.")
        return Receipted(release, bytes(body[:RECEIPT_BYTES]))
    if kind != CONTROL:
        raise PeerError(
            f"a frame begins with 'c', or with 'm' or 'r' once the rows are known, got {kind!r}; the link is closed."
        )
    try:
        control: Control = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PeerError(f"a control frame could not be decoded ({str(error)[:200]}); the link is closed.") from None
    return control


class Counted:
    """Checks the pieces of a list of `count` entries of `width` bytes, and keeps none; errors call the list `what`.

    Whoever sends a list says first how long it is. All pieces but the last are equally long and they come in order, so
    the length of every frame is known before it is read.
    """

    def __init__(self, what: str, count: int, width: int) -> None:
        self._what, self._came, self._length = what, 0, count * width

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return self._came == self._length

    def take(self, piece: ListPiece) -> NDArray[np.uint8]:
        """The bytes of the next piece; raises `PeerError` for any other."""
        length = min(PIECE, self._length - self._came)
        if not length or (piece.start, len(piece.data)) != (self._came, length):
            raise PeerError(
                f"{self._what} come in pieces, of which the next has {length} bytes and follows {self._came} bytes, "
                f"got one of {len(piece.data)} bytes that follows {piece.start}; the link is closed."
            )
        self._came += length
        return np.frombuffer(piece.data, np.uint8)


class Gathered(Counted):
    """Checks the pieces of a list in the same way, and keeps the list."""

    def __init__(self, what: str, count: int, width: int) -> None:
        super().__init__(what, count, width)
        self._data = np.empty(count * width, np.uint8)  # memory that nothing has been written to costs nothing

    def take(self, piece: ListPiece) -> NDArray[np.uint8]:
        """Add the next piece; raises `PeerError` for any other."""
        start, data = self._came, super().take(piece)
        self._data[start : start + len(data)] = data
        return data

    def entries(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The whole list, as one entry after the other."""
        return self._data.view(dtype)


def pieces(entries: NDArray[Any]) -> Iterator[bytes]:
    """The frames of a list."""
    data = np.ascontiguousarray(entries).reshape(-1).view(np.uint8)
    for start in range(0, len(data), PIECE):
        yield pack(ListPiece(start, data[start : start + PIECE].tobytes()))


def streamed(parts: Iterable[NDArray[Any]]) -> Iterator[bytes]:
    """The frames of a list that is made part by part, each as soon as it is full."""
    start, held = 0, bytearray()
    for part in parts:
        held += part.tobytes()
        while len(held) >= PIECE:
            yield pack(ListPiece(start, bytes(held[:PIECE])))
            start += PIECE
            del held[:PIECE]
    if held:
        yield pack(ListPiece(start, bytes(held)))


def agreed_hash(config: Config) -> str:
    """The hash of what all parties must agree on: everything except each party's own paths and machine."""
    return hashlib.sha256(configuration.render(agreed(config)).encode()).hexdigest()


def shown(text: str, most: int = 200) -> str:
    """A peer's own words, fit for a log: at most so many characters, on one line."""
    return repr(text[:most])


def hello(
    config: Config,
    run_id: str,
    position: int,
    ids: OwnIds,
    digests: Digests = NOTHING,
    *,
    t: int = 0,
    receipt: bytes = b"",
) -> Hello:
    """What a device with these `ids` says first."""
    own = ids.count, ids.digest
    return Hello(VERSION, PROTOCOL, agreed_hash(config), run_id, position, t, receipt, *own, digests)
