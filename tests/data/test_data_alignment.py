"""Records are aligned on the ids that all parties share, whatever the order of their files."""

from __future__ import annotations

import re
import time
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzv.data.alignment import Alignment, Fewest, aligned, keyed, name_of_key
from dpzv.data.dataset import Records, from_arrays, held_out
from dpzv.data.schedule import holdout
from dpzv.errors import ConfigError, DataError

KEY = bytes(range(32))
IDS = st.lists(st.text("ab0ü", min_size=1, max_size=2), unique=True, max_size=20)  # few, so that many are shared
FILES = st.lists(IDS, min_size=2, max_size=4)


def tables(*ids: list[str]) -> tuple[NDArray[np.uint8], list[NDArray[np.uint8]]]:
    hashes = [keyed(party, KEY) for party in ids]
    return hashes[0], hashes[1:]


# printf %s ID | openssl mac -macopt hexkey:0001..1f -macopt size:16 -in - BLAKE2BMAC
BY_OPENSSL = {
    "1": "9537f3329a1d23874fe9b30424e18e94",
    "Zürich": "cf0bd436cd21f745c9e695387b961996",
    "a b": "8043afa114fcb4f9207f975f1c781c30",
}


def test_a_key_has_a_name_for_each_column_of_ids_that_does_not_give_it_away() -> None:
    names = {name_of_key(key, column) for key in (KEY, KEY[::-1]) for column in ("customer", "email")}
    assert len(names) == 4
    assert name_of_key(KEY, "email") in names
    assert not any(KEY.hex() in name for name in names)


def test_a_hash_is_the_keyed_blake2b_of_the_utf8_text() -> None:
    got = keyed(list(BY_OPENSSL), KEY)
    assert (got.dtype, got.shape) == (np.uint8, (3, 16))
    assert [row.tobytes().hex() for row in got] == list(BY_OPENSSL.values())
    assert not (keyed(list(BY_OPENSSL), KEY[::-1]) == got).all(axis=1).any()
    assert keyed([], KEY).shape == (0, 16)


@pytest.mark.parametrize("key", [KEY[:31], KEY * 2 + b"x"])
def test_a_key_too_short_or_too_long_is_refused(key: bytes) -> None:
    with pytest.raises(ConfigError, match=rf"32 to 64 random bytes, got {len(key)}"):
        keyed(["a"], key)


@given(FILES, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_rows_point_at_equal_ids_and_file_order_does_not_matter(files: list[list[str]], random: Random) -> None:
    common = set.intersection(*(set(ids) for ids in files))
    server, devices = tables(*files)
    if not common:
        with pytest.raises(DataError, match="at least 1 ids, got 0"):
            aligned(server, devices)
        return
    found = aligned(server, devices)
    named = [[ids[row] for row in rows] for ids, rows in zip(files, found.rows, strict=True)]
    assert all(names == named[0] for names in named)
    assert sorted(named[0]) == sorted(common)
    assert found.n == len(common)
    assert named[0] == sorted(common, key=lambda text: keyed([text], KEY).tobytes())
    assert found.sizes == tuple(len(ids) for ids in files)
    assert found.with_server == tuple(len(set(files[0]) & set(ids)) for ids in files)
    assert all(rows.dtype == np.int64 for rows in found.rows)

    mixed = [list(ids) for ids in files]
    for ids in mixed:
        random.shuffle(ids)
    server, devices = tables(*mixed)
    again = aligned(server, devices)
    assert [[ids[row] for row in rows] for ids, rows in zip(mixed, again.rows, strict=True)] == named
    assert again.counts() == found.counts()


# few byte values, so that hashes share beginnings and have zeros and large bytes at their ends
RAW = st.lists(st.lists(st.sampled_from([0, 1, 127, 128, 255]), min_size=2, max_size=2), unique_by=tuple, max_size=8)


@given(RAW, RAW, st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_byte_of_a_hash_counts_and_sorts_unsigned(a: list[list[int]], b: list[list[int]], last: bool) -> None:
    def hashes(short: list[list[int]]) -> NDArray[np.uint8]:
        out = np.zeros((len(short), 16), dtype=np.uint8)
        out[:, [14, 15] if last else [0, 15]] = np.array(short, dtype=np.uint8).reshape(-1, 2)
        return out

    common = sorted(set(map(tuple, a)) & set(map(tuple, b)))
    if common:
        found = aligned(hashes(a), [hashes(b)])
        assert [tuple(a[row]) for row in found.rows[0]] == common
        assert [tuple(b[row]) for row in found.rows[1]] == common


def test_counts_are_for_the_operator_and_hold_no_id() -> None:
    server, devices = tables(["a", "b", "c", "d"], ["d", "c", "x"], ["c", "y", "z", "d", "b"])
    found = aligned(server, devices)
    assert isinstance(found, Alignment)
    assert found.counts() == (
        "the server has 4 rows, device 1 has 3, 2 of them known to the server, "
        "device 2 has 5, 3 of them known to the server, 2 are shared by all"
    )


def test_too_few_shared_ids_are_refused_with_the_counts_of_each_party() -> None:
    server, devices = tables(["a", "b", "c"], ["b", "c", "d"], ["c", "e"])
    assert aligned(server, devices, Fewest(1)).n == 1
    with pytest.raises(DataError) as refused:
        aligned(server, devices, Fewest(2))
    for words in ("at least 2 ids, got 1", "server has 3 rows", "device 1 has 3, 2 of", "device 2 has 2, 1 of"):
        assert words in str(refused.value)
    with pytest.raises(DataError, match=r"got 0: the server has 3 rows, device 1 has 1, 0 of them"):
        aligned(server, [keyed(["q"], KEY)])
    with pytest.raises(DataError, match="all parties have the same key"):
        aligned(server, [keyed(["a", "b", "c"], KEY[::-1])])


def test_where_ids_match_the_setting_that_needs_more_records_is_named() -> None:
    server, devices = tables(["a", "b", "c"], ["b", "c", "d"])
    asked = Fewest(9, "train.B = 7 with data.holdout = 0.2", "lower train.B")
    with pytest.raises(DataError) as refused:
        aligned(server, devices, asked)
    assert str(refused.value).startswith("train.B = 7 with data.holdout = 0.2 needs at least 9 records that all")
    assert "got 2: the server has 3 rows" in str(refused.value)
    assert str(refused.value).endswith("; lower train.B.")
    with pytest.raises(DataError, match=r"share at least 9 ids, got 1: .* files write ids alike"):
        aligned(server, [keyed(["a", "x", "y"], KEY)], asked)


def test_ids_twice_at_one_party_are_refused_with_counts() -> None:
    server, devices = tables(["a", "b"], ["a", "b", "a", "a"], ["b", "b"])
    with pytest.raises(DataError) as refused:
        aligned(server, devices)
    assert "server repeats 0 of 2, device 1 repeats 2 of 4, device 2 repeats 1 of 2;" in str(refused.value)


@pytest.mark.parametrize(
    "hashes", [np.zeros((2, 15), np.uint8), np.zeros(16, np.uint8), np.zeros((2, 16), np.int8)], ids=str
)
def test_what_are_no_hashes_is_refused(hashes: NDArray[np.uint8]) -> None:
    server = keyed(["a"], KEY)
    with pytest.raises(ConfigError, match=re.escape("hashes of device 2 must be uint8 [rows, 16]")):
        aligned(server, [server, hashes])
    with pytest.raises(ConfigError, match="no device"):
        aligned(server, [])


@given(st.integers(2, 300), st.floats(0.01, 0.99))
@settings(max_examples=50, deadline=None)
def test_the_split_is_the_public_rule_of_held_out(n: int, share: float) -> None:
    if not 0 < round(share * n) < n:
        with pytest.raises(ConfigError, match="leave training and test records"):
            holdout(n, share)
        return
    train, test = holdout(n, share)
    assert sorted([*train, *test]) == list(range(n))
    x, y = np.arange(n, dtype=np.float32)[:, None], np.arange(n, dtype=np.float32)
    there = held_out(from_arrays(Records([x], y), Records([x], y), task="regression"), share)
    assert np.array_equal(there.y_train, train)
    assert np.array_equal(there.y_test, test)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan"), 0.001])
def test_a_split_that_leaves_a_part_empty_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="of 100 records"):
        holdout(100, share)


def test_many_ids_are_quick() -> None:
    """A tenth of 300,000 ids at four parties; process time, with room for a busy machine."""
    ids = [f"record-{number}" for number in range(30_000)]
    start = time.process_time()
    server, devices = tables(ids, ids[::-1], ids[5_000:], ids[::2])
    found = aligned(server, devices)
    assert time.process_time() - start < 2
    assert found.n == 12_500
