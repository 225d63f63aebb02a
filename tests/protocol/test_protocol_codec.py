"""The codec: round trips, sizes, and rejection of whatever is not a frame."""

from __future__ import annotations

import math
import time
import tracemalloc
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzv.errors import PeerError
from dpzv.protocol.codec import FRAMING, MAX_FRAME, Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release

LAM = 1e-3
Name = Literal["float32", "float16", "int8"]


def tensor(B: int, k: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((B, k), dtype=np.float32)


@given(B=st.integers(1, 40), k=st.integers(1, 9), seed=st.integers(0, 99), position=st.integers(0, 2**40))
def test_float32_round_trip_is_exact(B: int, k: int, seed: int, position: int) -> None:
    codec = Codec("float32", LAM)
    sent = Embeddings(3, position, (tensor(B, k, seed), tensor(B, k, seed + 1)))
    got = codec.decode(codec.encode(sent))
    assert isinstance(got, Embeddings)
    assert (got.m, got.position) == (3, position)
    assert np.array_equal(got.h[0], sent.h[0])
    assert np.array_equal(got.h[1], sent.h[1])
    for cls in (Fill, Evaluation):
        message = codec.decode(codec.encode(cls(1, 7, sent.h[0])))
        assert isinstance(message, cls)
        assert (message.m, message.start) == (1, 7)
        assert np.array_equal(message.h, sent.h[0])


@given(Delta=st.floats(allow_nan=False, allow_infinity=False), t=st.integers(1, 2**40))
def test_release_round_trip_is_exact(Delta: float, t: int) -> None:
    codec = Codec("float16", LAM)
    release = Release(t, 2, t // 2, np.array([Delta]))
    got = codec.decode(codec.encode(release))
    assert isinstance(got, Release)
    assert (got.t, got.m, got.position) == (release.t, release.m, release.position)
    assert got.Delta.tobytes() == release.Delta.tobytes()


def test_float16_keeps_the_difference_to_half_precision() -> None:
    """What the server needs is h_plus - h_minus: relative 2^-11, where two plain halves would lose it all."""
    h = tensor(64, 8, 0)
    slope = tensor(64, 8, 1)
    sent = Embeddings(1, 0, (h + LAM * slope, h - LAM * slope))
    codec = Codec("float16", LAM)
    got = codec.decode(codec.encode(sent))
    assert isinstance(got, Embeddings)
    found = (got.h[0] - got.h[1]) / (2 * LAM)
    assert np.abs(found - slope).max() < 2e-3
    plain = (sent.h[0].astype(np.float16) - sent.h[1].astype(np.float16)).astype(np.float32) / (2 * LAM)
    assert np.abs(plain - slope).max() > 0.1


def test_float16_frames_are_half_as_long_and_rows_stay_apart() -> None:
    a = Embeddings(1, 5, (tensor(512, 16, 0), tensor(512, 16, 1)))
    half, whole = Codec("float16", LAM), Codec("float32", LAM)
    assert len(half.encode(a)) < 0.51 * len(whole.encode(a))
    outlier = a.h[0].copy()
    outlier[3] = 1e30
    first, second = (
        half.decode(half.encode(a)),
        half.decode(half.encode(Embeddings(1, 5, (outlier, a.h[1])))),
    )
    assert isinstance(first, Embeddings)
    assert isinstance(second, Embeddings)
    keep = np.arange(512) != 3
    assert np.array_equal(first.h[0][keep], second.h[0][keep])
    assert not np.isfinite(second.h[0][3]).any()


@pytest.mark.parametrize("per_record", [False, True])
@pytest.mark.parametrize("name", ["float32", "float16", "int8"])
def test_the_payload_of_every_message_is_its_frame_without_the_framing(name: Name, per_record: bool) -> None:
    codec, h = Codec(name, LAM, arrays=1000, per_record=per_record), tensor(100, 7, 0)
    uploads = [Fill(1, 0, h), Evaluation(1, 0, h), *(Embeddings(2**40, 2**40, (h,) * n) for n in (1, 2, 5, 300))]
    for message in (*uploads, Release(1, 1, 0, np.ones(1)), Release(1, 1, 0, np.ones(300))):
        assert 0 < len(codec.encode(message)) - codec.payload_bytes(message) < FRAMING
    assert len(codec.encode(Embeddings(1, 0, (h,) * 1000))) <= codec.longest(100, 7)
    expected = {"float32": 5 * 700 * 4, "float16": 5 * 700 * 2, "int8": 700 * 2 + 4 * 700 + 100 * 2}
    assert codec.payload_bytes(Embeddings(1, 0, (h,) * 5)) == expected[name]
    assert codec.payload_bytes(Release(1, 1, 0, np.ones(300))) == 300 * (4 if per_record else 8)


def along(slopes: NDArray[np.float32], seed: int = 0) -> tuple[NDArray[np.float32], ...]:
    """h and h + lam*slope for each of `slopes` [K, B, k]."""
    h = tensor(*slopes.shape[1:], seed)
    return h, *(h + np.float32(LAM) * slope for slope in slopes)


def received(codec: Codec, h: tuple[NDArray[np.float32], ...], position: int = 0) -> NDArray[np.float32]:
    got = codec.decode(codec.encode(Embeddings(1, position, h)))
    assert isinstance(got, Embeddings)
    assert len(got.h) == len(h)
    return np.stack(got.h)


@pytest.mark.parametrize(("name", "error"), [("float32", 1e-4), ("float16", 3e-3), ("int8", 5 / 127)])
def test_slopes_survive_every_codec(name: Name, error: float) -> None:
    """With one record a thousand times steeper than the others, which scales of their own do not notice."""
    slopes = np.stack([tensor(64, 3, j) for j in range(1, 9)])
    slopes[:, 5] *= 1000
    got = received(Codec(name, LAM, arrays=9), along(slopes))
    found = (got[1:] - got[0]) / LAM
    size = np.maximum(np.abs(slopes).max(axis=(0, 2)), 1)
    assert (np.abs(found - slopes).max(axis=(0, 2)) / size).max() < error


def test_slopes_of_8_bits_are_right_on_average() -> None:
    """The coins of other positions are others; without them every rounding would err the same way."""
    slopes = np.stack([tensor(32, 2, j) for j in range(1, 5)])
    codec, h = Codec("int8", LAM, arrays=5), along(slopes)
    got = [received(codec, h, position) for position in range(200)]
    found = np.mean([(one[1:] - one[0]) / LAM for one in got], axis=0)
    scale = np.abs(slopes).max(axis=(0, 2))[None, :, None] / 127
    # a coin's error is below one step, so the mean of 200 errs by less than half a step / sqrt(200) times 6
    assert np.abs((found - slopes) / scale).max() < 6 * 0.5 / np.sqrt(200) + 0.02
    once = (got[0][1:] - got[0][0]) / LAM
    assert np.abs((once - slopes) / scale).max() > 0.7
    assert np.array_equal(received(codec, h, 7), got[7])  # a repeated upload repeats its bytes
    assert not np.array_equal(received(Codec("int8", LAM, arrays=5, seed=1), h), got[0])


@settings(max_examples=60)
@given(
    name=st.sampled_from(["float32", "float16", "int8"]),
    K=st.integers(1, 5),
    i=st.integers(0, 7),
    j=st.integers(0, 5),
    value=st.floats(width=32),
)
def test_the_bytes_of_a_record_do_not_depend_on_other_records(name: Name, K: int, i: int, j: int, value: float) -> None:
    """The row rule, with any value in one place; what is not finite or too large is seen in that row alone."""
    h = along(np.stack([tensor(8, 2, seed) for seed in range(1, K + 1)]))
    codec = Codec(name, LAM, arrays=K + 1)
    before = received(codec, h)
    changed = [one.copy() for one in h]
    changed[j % len(changed)][i, 1] = value
    after, others = received(codec, tuple(changed)), np.arange(8) != i
    assert np.array_equal(before[:, others], after[:, others])
    if not np.isfinite(value):
        assert not np.isfinite(after[:, i]).all()


def test_frames_of_8_bits_that_do_not_fit_are_refused() -> None:
    codec, h = Codec("int8", LAM, arrays=4), along(np.stack([tensor(6, 3, j) for j in range(3)]))
    good = msgspec.msgpack.decode(codec.encode(Embeddings(1, 0, h)))
    first, steps, scales = good[4]
    assert (len(first), len(steps), len(scales)) == (36, 54, 12)
    for parts in (
        [],
        [first, steps],
        [first, steps + first, scales],
        [first, steps, scales[:-1]],
        [first, b"", scales],
    ):
        with pytest.raises(PeerError):
            codec.decode(msgspec.msgpack.encode([*good[:4], parts]))
    for parts in ([first, steps[:18], scales], [first, steps, b"\xff" * 12], [first, b"\x80" * 54, scales]):
        assert isinstance(codec.decode(msgspec.msgpack.encode([*good[:4], parts])), Embeddings)
    assert isinstance(codec.decode(codec.encode(Fill(1, 0, h[0]))), Fill)


@pytest.mark.parametrize("n", [1, 3, 4, 7])
def test_any_number_of_arrays_is_sent_one_by_one(n: int) -> None:
    """Slopes are sent only where the method says that its arrays have them."""
    sent = tuple(tensor(6, 3, seed) for seed in range(n))
    for name, received in (("float32", sent), ("float16", [h.astype(np.float16).astype(np.float32) for h in sent])):
        codec = Codec(name, LAM, arrays=n, slopes=False)
        got = codec.decode(codec.encode(Embeddings(1, 0, sent)))
        assert isinstance(got, Embeddings)
        assert [h.tobytes() for h in got.h] == [h.tobytes() for h in received]


def test_a_frame_is_what_it_was_in_the_first_version() -> None:
    """The order of the fields and of the arrays is a format."""
    h_plus, h_minus = np.array([[1.5]], np.float32), np.array([[0.5]], np.float32)
    frames = [
        (Codec("float32", 0.5), Fill(1, 2, h_plus), b"\x95\xa1f\x01\x02\x92\x01\x01\xc4\x04\x00\x00\xc0?"),
        (Codec("float32", 0.5), Evaluation(1, 2, h_plus), b"\x95\xa1v\x01\x02\x92\x01\x01\xc4\x04\x00\x00\xc0?"),
        (
            Codec("float32", 0.5),
            Embeddings(1, 2, (h_plus, h_minus)),
            b"\x95\xa1e\x01\x02\x92\x01\x01\x92\xc4\x04\x00\x00\xc0?\xc4\x04\x00\x00\x00?",
        ),
        (  # midpoint 1, then slope (1.5 - 0.5) / (2 * 0.25) = 2
            Codec("float16", 0.25),
            Embeddings(1, 2, (h_plus, h_minus)),
            b"\x95\xa1e\x01\x02\x92\x01\x01\x92\xc4\x02\x00<\xc4\x02\x00@",
        ),
        (  # h, then slopes (h_j - h) / lam = -2 and 4 in half precision
            Codec("float16", 0.5, arrays=3),
            Embeddings(1, 2, (h_plus, h_minus, h_plus + 2)),
            b"\x95\xa1e\x01\x02\x92\x01\x01\x92\xc4\x02\x00>\xc4\x04\x00\xc0\x00D",
        ),
        (  # midpoint 1, slope 2 as 127 steps of its scale, scale 2
            Codec("int8", 0.25),
            Embeddings(1, 2, (h_plus, h_minus)),
            b"\x95\xa1e\x01\x02\x92\x01\x01\x93\xc4\x02\x00<\xc4\x01\x7f\xc4\x02\x00@",
        ),
        (
            Codec("float32", 0.5),
            Release(3, 1, 2, np.array([1.5])),
            b"\x95\xa1r\x03\x01\x02\xc4\x08\x00\x00\x00\x00\x00\x00\xf8?",
        ),
    ]
    for codec, message, frame in frames:
        assert codec.encode(message) == frame
        assert codec.encode(codec.decode(frame)) == frame


FRAME = Codec("float32", LAM).encode(Embeddings(1, 0, (tensor(6, 3, 0), tensor(6, 3, 1))))


@settings(max_examples=300)
@given(cut=st.integers(0, len(FRAME) - 1))
def test_truncated_frames_are_refused(cut: int) -> None:
    with pytest.raises(PeerError):
        Codec("float32", LAM).decode(FRAME[:cut])


@settings(max_examples=500)
@given(at=st.integers(0, len(FRAME) - 1), value=st.integers(0, 255), tail=st.binary(max_size=4))
def test_mutated_frames_decode_or_are_refused(at: int, value: int, tail: bytes) -> None:
    frame = FRAME[:at] + bytes([value]) + FRAME[at + 1 :] + tail
    try:
        got = Codec("float32", LAM).decode(frame)
    except PeerError:
        return
    assert isinstance(got, Embeddings | Fill | Evaluation | Release)


@given(st.binary(max_size=200))
def test_noise_is_refused(frame: bytes) -> None:
    with pytest.raises(PeerError):
        Codec("float16", LAM).decode(frame)


def test_oversized_frames_are_refused_unread() -> None:
    with pytest.raises(PeerError, match="at most"):
        Codec("float32", LAM).decode(bytes(MAX_FRAME + 1))


@pytest.mark.parametrize("arrays", [1, 2, 1000])
def test_many_empty_arrays_are_refused_before_any_is_built(arrays: int) -> None:
    """A frame of a megabyte once took 3.6 seconds and 0.6 GB, and its refusal told the shape of every array."""
    codec = Codec("float32", LAM, arrays=arrays)
    frames = [msgspec.msgpack.encode(["e", 1, 0, [0, 0], [b""] * n]) for n in (arrays + 1, 1, 500_000)]
    tracemalloc.start()
    began = time.perf_counter()
    try:
        for frame in frames:
            with pytest.raises(PeerError) as refused:
                codec.decode(frame)
            assert len(str(refused.value)) < 500
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_an_array_without_numbers_is_refused(shape: tuple[int, int]) -> None:
    """Chunks of no rows would cost a device nothing, and the server memory for each."""
    codec, h = Codec("float32", LAM), np.zeros(shape, np.float32)
    for message in (Embeddings(1, 0, (h, h)), Fill(1, 0, h), Evaluation(1, 0, h)):
        with pytest.raises(PeerError, match="at least one row"):
            codec.decode(codec.encode(message))


def test_what_a_refusal_tells_of_a_frame_is_short() -> None:
    with pytest.raises(PeerError) as refused:
        Codec("float32", LAM).decode(msgspec.msgpack.encode(["x" * 1_000_000]))
    assert len(str(refused.value)) < 500


def test_a_release_that_is_not_finite_is_refused() -> None:
    codec = Codec("float32", LAM)
    with pytest.raises(PeerError, match="finite"):
        codec.decode(codec.encode(Release(1, 1, 0, np.array([math.nan]))))


@pytest.mark.parametrize("rows", [1, 6, 7, 1638, 1639])
def test_a_frame_is_what_messagepack_writes(rows: int) -> None:
    """Around the lengths at which MessagePack counts bytes in another way: 256 and 65,536."""
    h = tuple(np.random.default_rng(j).standard_normal((rows, 10), np.float32) for j in range(4))
    codec = Codec("float32", LAM, arrays=4)
    others = b"".join(one.tobytes() for one in h[1:])
    frames = {
        codec.encode(Embeddings(2, 70_000, h)): ["e", 2, 70_000, [rows, 10], [h[0].tobytes(), others]],
        codec.encode(Embeddings(2, 5, h[:1])): ["e", 2, 5, [rows, 10], [h[0].tobytes()]],
        codec.encode(Fill(2, 300, h[0])): ["f", 2, 300, [rows, 10], h[0].tobytes()],
        codec.encode(Evaluation(2, 300, h[0])): ["v", 2, 300, [rows, 10], h[0].tobytes()],
    }
    for frame, fields in frames.items():
        assert frame == msgspec.msgpack.encode(fields)
    assert codec.encode(Fill(2, 300, h[0]), b"mark") == b"mark" + codec.encode(Fill(2, 300, h[0]))
