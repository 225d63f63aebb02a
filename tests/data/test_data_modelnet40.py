"""Views of things: a folder of pictures and an npz file give the same devices; gaps are refused with counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dpzv.data import catalogue
from dpzv.errors import DataError

CLASSES = ("bench", "chair", "lamp")
COUNTS = {"train": (3, 2, 1), "test": (1, 2, 1)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "cache"


def made() -> dict[str, NDArray[Any]]:
    """Views in the layout of the npz file."""
    generator = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {"class_names": np.array(CLASSES)}
    for split, counts in COUNTS.items():
        arrays[f"X_{split}"] = generator.integers(0, 256, (sum(counts), 12, 32, 32), dtype=np.uint8)
        arrays[f"y_{split}"] = np.repeat(np.arange(3), counts)
    return arrays


def write_folder(folder: Path, arrays: dict[str, NDArray[Any]], pattern: str, mode: str = "L", size: int = 32) -> None:
    for split, counts in COUNTS.items():
        i = 0
        for name, count in zip(CLASSES, counts, strict=True):
            (folder / name / split).mkdir(parents=True)
            for thing in range(count):
                for v in range(12):
                    picture = Image.fromarray(arrays[f"X_{split}"][i, v]).convert(mode).resize((size, size), 0)
                    picture.save(folder / name / split / pattern.format(f"{name}_{thing:04}", v + 1))
                i += 1


@pytest.mark.parametrize("pattern", ["{}_{:03}.png", "{}.obj_shaded_v{:03}.png", "{}.{}.png"])
def test_a_folder_gives_what_an_npz_file_of_it_gives(tmp_path: Path, pattern: str) -> None:
    arrays = made()
    np.savez(tmp_path / "views.npz", **arrays)
    write_folder(tmp_path / "views", arrays, pattern)
    (tmp_path / "views" / "README").write_text("no class")
    (tmp_path / "views" / "lamp" / "train" / "notes.txt").write_text("no view")
    for given in ("views.npz", "views"):
        data = catalogue.load("modelnet40", tmp_path / given)
        assert (data.n_classes, len(data.devices), data.devices[11]) == (3, 12, "view 12")
        assert np.array_equal(data.y_train, arrays["y_train"])
        assert np.array_equal(data.y_test, arrays["y_test"])
        for v in range(12):
            assert data.x_train[v].dtype == np.uint8
            assert np.array_equal(data.x_train[v], arrays["X_train"][:, v].reshape(6, 1024))
            assert np.array_equal(data.x_test[v], arrays["X_test"][:, v].reshape(4, 1024))


def test_colour_pictures_of_another_size_become_grey_and_small(tmp_path: Path) -> None:
    arrays = made()
    for split in COUNTS:  # even pictures: enlarging and shrinking leaves them as they are
        arrays[f"X_{split}"][...] = arrays[f"X_{split}"][:, :, :1, :1]
    write_folder(tmp_path / "views", arrays, "{}_{:03}.png", "RGB", 224)
    data = catalogue.load("modelnet40", tmp_path / "views")
    assert np.array_equal(data.x_train[3], arrays["X_train"][:, 3].reshape(6, 1024))


def test_a_folder_is_decoded_once(tmp_path: Path, own_cache: Path) -> None:
    write_folder(tmp_path / "views", made(), "{}_{:03}.png")
    first = catalogue.load("modelnet40", tmp_path / "views")
    (kept,) = own_cache.iterdir()
    stamp = kept.stat().st_mtime_ns
    again = catalogue.load("modelnet40", tmp_path / "views")
    assert (again.fingerprint, kept.stat().st_mtime_ns) == (first.fingerprint, stamp)
    kept.write_bytes(kept.read_bytes()[:-100])  # damaged: made again
    assert catalogue.load("modelnet40", tmp_path / "views").fingerprint == first.fingerprint
    changed = tmp_path / "views" / "bench" / "train" / "bench_0000_001.png"
    Image.new("L", (32, 32)).save(changed)
    assert catalogue.load("modelnet40", tmp_path / "views").fingerprint != first.fingerprint
    assert len(list(own_cache.iterdir())) == 2


def test_objects_that_lack_a_view_are_refused_with_counts(tmp_path: Path) -> None:
    folder = tmp_path / "views"
    write_folder(folder, made(), "{}_{:03}.png")
    (folder / "chair" / "train" / "chair_0001_007.png").unlink()
    (folder / "lamp" / "test" / "lamp_0000_012.png").rename(folder / "lamp" / "test" / "lamp_0000_013.png")
    words = r"2 of 10 objects do not \(chair_0001_001.png has 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12\)"
    with pytest.raises(DataError, match=words):
        catalogue.load("modelnet40", folder)


def test_what_is_no_picture_or_no_such_folder_is_refused(tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "views"
    (folder / "chair" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"0 of 0 objects .*none is there"):
        catalogue.load("modelnet40", folder)
    with pytest.raises(DataError, match=r"has no folder class/train or class/test; set data.path"):
        catalogue.load("modelnet40", folder / "chair" / "train")
    (folder / "chair" / "train").rmdir()
    (folder / "chair").rmdir()
    write_folder(folder, made(), "{}_{:03}.png")
    (folder / "chair" / "train" / "chair_0001_007.png").write_bytes(b"\x89PNG no picture")
    with pytest.raises(DataError, match=r"chair_0001_007.png should be a PNG picture"):
        catalogue.load("modelnet40", folder)
    assert not own_cache.exists()


def test_test_objects_that_equal_a_training_object_are_left_out(tmp_path: Path) -> None:
    arrays = made()
    flags = np.array([0, 1, 0, 1], bool)
    np.savez(tmp_path / "views.npz", test_equals_a_train_object=flags, **arrays)
    data = catalogue.load("modelnet40", tmp_path / "views.npz")
    assert np.array_equal(data.x_test[5], arrays["X_test"][[0, 2], 5].reshape(2, 1024))
    assert data.y_test.tolist() == arrays["y_test"][[0, 2]].tolist()
    assert "2 test objects that equal a training object are left out" in data.source


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"X_test": None, "class_names": None}, "but lacks X_test, class_names"),
        ({"X_train": np.zeros((6, 12, 32, 32))}, r"X_train of .* \[6, 12, 32, 32\], .* got float64"),
        ({"X_test": np.zeros((4, 11, 32, 32), np.uint8)}, r"X_test of .* got uint8 of shape \[4, 11, 32, 32\]"),
        ({"y_test": np.zeros(3, int)}, r"X_test of .* \[3, 12, 32, 32\], one for each of y_test"),
        ({"test_equals_a_train_object": np.zeros(3, bool)}, r"each of 4 test objects, got shape \[3\]"),
        ({"class_names": np.array(["a", None], object)}, "reading it failed"),
    ],
)
def test_an_npz_file_of_another_layout_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    arrays = {key: array for key, array in (made() | changes).items() if array is not None}
    np.savez(tmp_path / "views.npz", **arrays)
    with pytest.raises(DataError, match=words):
        catalogue.load("modelnet40", tmp_path / "views.npz")


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "views.npy", np.zeros(3))
    (tmp_path / "views.npz").write_bytes(b"no archive")
    for name in ("views.npy", "views.npz"):
        with pytest.raises(DataError, match=r"should be an .npz file of views, but reading it failed"):
            catalogue.load("modelnet40", tmp_path / name)
