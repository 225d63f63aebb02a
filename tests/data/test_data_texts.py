"""Millions of ids: a compact list that behaves like a list, and memory that does not grow with copies of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv.data import rows
from dpzv.data.alignment import aligned, keyed
from dpzv.data.party_records import LabelSettings, read_ids, read_labels
from dpzv.data.texts import Texts

N, M = 30_000, 4
KEY = bytes(32)


@given(st.lists(st.text(max_size=5), max_size=12), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_texts_are_what_a_list_of_them_is(texts: list[str], cut: int) -> None:
    made = Texts(texts[:cut])
    made.extend(texts[cut:])
    assert made == texts
    assert list(made) == texts
    assert len(made) == len(texts)
    assert made[1:7:2] == texts[1:7:2]
    assert [made[i] for i in range(-len(texts), len(texts))] == texts + texts
    assert made.may_repeat() == (len(set(texts)) < len(texts))
    assert list(reversed(made)) == texts[::-1]
    with pytest.raises(IndexError):
        made[len(texts)]


def peak(work: Callable[[], object]) -> float:
    """Bytes a record that `work` holds at its peak."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / N
    finally:
        tracemalloc.stop()


def test_alignment_takes_little_more_memory_than_the_row_numbers_it_finds() -> None:
    """They take 8 bytes a party and record; to sort all parties at once took 140 bytes a record in all."""
    generator = np.random.default_rng(0)
    own = generator.integers(0, 256, (N, 16), dtype=np.uint8)
    devices = [own[generator.permutation(N)] for _ in range(M)]
    assert peak(lambda: aligned(own, devices)) < 8 * (M + 1) + 30


def test_a_file_is_read_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id takes its 9 bytes and 8 more, its line and label 8 each, and what is sorted 16; lists took 130."""
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 100)
    path = tmp_path / "labels.csv"
    path.write_text("id,y\n" + "".join(f"{i:09},{i % 2}\n" for i in range(N)))
    asked = LabelSettings(file=str(path), id="id", label="y", task="binary", classes=("0", "1"))
    found = read_labels(asked)
    assert found.ids == [f"{i:09}" for i in range(N)]
    assert np.array_equal(found.y, np.arange(N) % 2)
    assert peak(lambda: read_labels(asked)) < 80
    assert peak(lambda: keyed(found.ids, KEY)) < 40


def test_ids_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_bytes("\ufeffa\r\n\n  b c \nd\re\u2028ü".encode())
    assert read_ids(path) == ["a", "b c", "d", "e", "ü"]
