"""What parties say to each other besides the messages of `protocol/`: hello, who is who, alignment, requests, goodbye.

A frame is one byte that says which of the two kinds it holds, then MessagePack. A malformed frame raises `PeerError`.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Literal

import msgspec

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.errors import PeerError
from dpzv.network.feature_records import Digests
from dpzv.privacy.receipts import RECEIPT_BYTES
from dpzv.protocol.codec import MAX_FRAME, Codec
from dpzv.protocol.messages import Message, Release
from dpzv.runtime.agreement import agreed
from dpzv.version import VERSION

__all__ = [
    "BATCHES",
    "CONTROL",
    "HELLO_BYTES",
    "IDS_BYTES",
    "MESSAGE",
    "PART",
    "PROTOCOL",
    "RELEASE",
    "Ask",
    "Control",
    "Done",
    "Hello",
    "Ids",
    "Receipted",
    "Rows",
    "Stop",
    "Welcome",
    "agreed_hash",
    "hello",
    "pack",
    "pack_message",
    "pack_release",
    "protocol_of",
    "shown",
    "unpack",
]

MAX_CONTROL = 1 << 24
"""The most bytes of a control message that is not `Ids` or `Rows`: a request to predict two million records."""

MAX_HELLO = 1 << 14
"""The most bytes of a hello of any version."""

PART = 1 << 18
"""Bytes of the longest frame that every transport sends in one piece; a longer one may go in parts."""

BATCHES = 2
"""A device sends test embeddings in parts of this many batches, which are about as much work as one or two rounds."""

HELLO_BYTES = 4096
"""Bytes of the longest frame that a peer may send before it has said hello."""

IDS_BYTES = MAX_FRAME
"""Bytes of the longest frame of hashed ids."""

MESSAGE, RELEASE, CONTROL = b"m", b"r", b"c"
"""The first byte of a frame, which is a format: it holds a message of `protocol/`, a receipt and the release that it is
for, or a control message."""

PROTOCOL = 2
"""Parties that speak another number refuse each other."""


Word = Annotated[str, msgspec.Meta(max_length=100)]
"""A version, a hash or the name of a run."""

Sentence = Annotated[str, msgspec.Meta(max_length=2000)]
NOTHING = Digests()
"""The digests of a device that says nothing of its encoding and records."""


class _Control(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The order of the fields and the tags of what follows are the format of the wire; a change raises `PROTOCOL`."""


class Hello(_Control, frozen=True, tag="hello"):
    """Device -> server, first of all: versions, the hash of the agreed configuration, and how far its weights are.

    `run_id` is that of the run its weights belong to; empty if it has none yet. `t` and `receipt` are those of the last
    release in its weights; 0 and empty if there is none. `ids_sha256` names its list of hashed ids, so that a changed
    file is noticed, and `digests` what its weights mean: its encoding and its records.
    """

    version: Word
    protocol: int
    config_hash: Word
    run_id: Word
    position: int
    t: int
    receipt: Annotated[bytes, msgspec.Meta(max_length=RECEIPT_BYTES)]
    ids_sha256: Word
    digests: Digests = NOTHING


class Welcome(_Control, frozen=True, tag="welcome"):
    """Server -> device: its number, the run, and whether the server still needs its hashed ids."""

    m: int
    run_id: Word
    mode: Literal["train", "predict"]
    needs_ids: bool


class Ids(_Control, frozen=True, tag="ids"):
    """Device -> server: the keyed hashes of its record ids, 16 bytes each, in the order of its file."""

    hashes: bytes


class Rows(_Control, frozen=True, tag="rows"):
    """Server -> device: which of its rows are trained on and which are tested on, int64, in the common order.

    `mu_start` is what a private start of this device may cost; earlier runs on the records may have left less.
    """

    train: bytes
    test: bytes
    mu_start: float = math.inf


class Ask(_Control, frozen=True, tag="ask"):
    """Server -> device: send the first fill, begin the rounds, send test embeddings, or send embeddings of `rows`.

    `rows` are row numbers of the device's file, int64. `start` is the train record from which the fill goes on.
    """

    what: Literal["fill", "rounds", "evaluate", "predict"]
    rows: bytes = b""
    start: int = 0


class Done(_Control, frozen=True, tag="done"):
    """Device -> server: all of the fill, or of the embeddings asked for, was sent."""

    what: Literal["fill", "evaluate", "predict"]


class Stop(_Control, frozen=True, tag="stop"):
    """Either way: the goodbye. A stream that ends without it ended by accident.

    `final`: the run is over, do not come back. `refused`: do not come back as you are, since the answer stays the same.
    """

    reason: Sentence
    final: bool
    refused: bool = False


class Receipted(msgspec.Struct, frozen=True):
    """Server -> device: a release, and the receipt by which the device can show later that it was sent."""

    release: Release
    receipt: bytes


Control = Hello | Welcome | Ids | Rows | Ask | Done | Stop

_DECODER = msgspec.msgpack.Decoder(Control)
_ENCODER = msgspec.msgpack.Encoder()


def pack(control: Control) -> bytes:
    """The frame of a control message."""
    return CONTROL + _ENCODER.encode(control)


def pack_message(codec: Codec, message: Message) -> bytes:
    """The frame of a message of the protocol."""
    return MESSAGE + codec.encode(message)


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
    # the four bytes after the array's header begin the tag, as MessagePack writes it: "ids" or "rows"
    most = MAX_FRAME if kind in (MESSAGE, RELEASE) or frame[2:6] in (b"\xa3ids", b"\xa4row") else MAX_CONTROL
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
    hashes: bytes,
    digests: Digests = NOTHING,
    *,
    t: int = 0,
    receipt: bytes = b"",
) -> Hello:
    """What a device says first."""
    ids_sha256 = hashlib.sha256(hashes).hexdigest()
    return Hello(VERSION, PROTOCOL, agreed_hash(config), run_id, position, t, receipt, ids_sha256, digests)
