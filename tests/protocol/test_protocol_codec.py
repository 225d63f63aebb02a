"""The codec: round trips, sizes, and rejection of whatever is not a frame."""

from __future__ import annotations

import math
import time
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzv.errors import PeerError
from dpzv.protocol.codec import MAX_FRAME, Codec
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release

LAM = 1e-3


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
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_the_payload_of_every_message_is_its_frame_without_the_framing(name: str, per_record: bool) -> None:
    codec, h = Codec(name, LAM, per_record=per_record), tensor(100, 7, 0)
    uploads = [Fill(1, 0, h), Evaluation(1, 0, h), *(Embeddings(1, 0, (h,) * n) for n in (1, 2, 5))]
    for message in (*uploads, Release(1, 1, 0, np.ones(1)), Release(1, 1, 0, np.ones(300))):
        assert 0 < len(codec.encode(message)) - codec.payload_bytes(message) < 48
    assert codec.payload_bytes(Embeddings(1, 0, (h,) * 5)) == 5 * 700 * (4 if name == "float32" else 2)
    assert codec.payload_bytes(Release(1, 1, 0, np.ones(300))) == 300 * (4 if per_record else 8)


@pytest.mark.parametrize("n", [1, 3, 4, 7])
def test_any_number_of_arrays_is_sent_one_by_one(n: int) -> None:
    """Only two arrays are a pair of which the midpoint and the slope are sent."""
    sent = tuple(tensor(6, 3, seed) for seed in range(n))
    for name, received in (("float32", sent), ("float16", [h.astype(np.float16).astype(np.float32) for h in sent])):
        codec = Codec(name, LAM, arrays=n)
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
