"""`modelnet40`: things seen from twelve sides, one device a view.

``data.path`` is the usual folder of rendered views, class/train/object_001.png to object_012.png and class/test/...,
or an .npz file with X_train [n, 12, 32, 32] uint8, y_train, X_test, y_test, class_names and, if it has one, the flag
test_equals_a_train_object. Classes are the sorted folder names, which are public.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv.data.cards import Card, Wanted
from dpzv.data.dataset import Dataset, Records
from dpzv.data.files import cached, explained, open_npz
from dpzv.errors import DataError

__all__ = ["CARD", "SIDE", "VIEWS", "load"]

VIEWS, SIDE = 12, 32
_SPLITS = ("train", "test")
_VIEW = re.compile(r"(?P<thing>.+)[._-]v?(?P<view>\d{1,3})\.png")
_KEYS = ("X_train", "y_train", "X_test", "y_test", "class_names")
_SEEN = "test_equals_a_train_object"


def load(wanted: Wanted) -> Dataset:
    """The views of a folder or an .npz file: twelve devices, uint8 [D, 1024], row after row.

    Pictures of a folder are made grey and 32x32 once, and the result is kept in the data folder. Test objects flagged
    as equal to a training object are left out.
    """
    path = wanted.folder
    arrays = _from_folder(path) if path.is_dir() else _from_npz(path)
    kinds = len(arrays["class_names"])
    left_out = arrays.get(_SEEN, np.zeros(len(arrays["y_test"]), dtype=bool)).astype(bool)
    said = f" {int(left_out.sum())} test objects that equal a training object are left out." if left_out.any() else ""
    source = f"Things of {kinds} kinds seen from {VIEWS} sides, {SIDE}x{SIDE} grey, from {path.name}.{said}"
    return replace(CARD, n_classes=kinds, source=source).dataset(
        Records(_by_view(arrays["X_train"]), arrays["y_train"]),
        Records(_by_view(arrays["X_test"][~left_out]), arrays["y_test"][~left_out]),
    )


def _by_view(views: NDArray[Any]) -> list[NDArray[Any]]:
    return [np.ascontiguousarray(views[:, v]).reshape(-1, SIDE * SIDE) for v in range(VIEWS)]


def _from_npz(path: Path) -> dict[str, NDArray[Any]]:
    kinds = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)
    with explained(f"{path} should be an .npz file of views, but reading it", f"{CARD.get}.", *kinds):
        arrays = open_npz(path)
    if absent := [key for key in _KEYS if key not in arrays]:
        raise DataError(
            f"{path} should hold {', '.join(_KEYS)}, but lacks {', '.join(absent)}; make it again with these keys."
        )
    for split in _SPLITS:
        views, y = arrays[f"X_{split}"], arrays[f"y_{split}"]
        if views.dtype != np.uint8 or views.shape != (len(y), VIEWS, SIDE, SIDE):
            raise DataError(
                f"X_{split} of {path} should be uint8 of shape [{len(y)}, {VIEWS}, {SIDE}, {SIDE}], one for each of "
                f"y_{split}, got {views.dtype} of shape {list(views.shape)}; make it again in that shape."
            )
    if _SEEN in arrays and arrays[_SEEN].shape != arrays["y_test"].shape:
        raise DataError(
            f"{_SEEN} of {path} should have one flag for each of {len(arrays['y_test'])} test objects, got shape "
            f"{list(arrays[_SEEN].shape)}; make it again in that shape."
        )
    return arrays


def _from_folder(folder: Path) -> dict[str, NDArray[Any]]:
    classes = sorted(entry.name for entry in folder.iterdir() if any((entry / split).is_dir() for split in _SPLITS))
    if not classes:
        raise DataError(
            f"data.path should be a folder of rendered views, but {folder} has no folder class/train or class/test; "
            f"{CARD.get}."
        )
    things = {split: [_things(folder / name / split) for name in classes] for split in _SPLITS}
    _refuse_gaps(folder, things)
    key = hashlib.sha256(f"{VIEWS} {SIDE} {classes}".encode())
    pictures = {
        split: [p for kind in things[split] for views in kind for _, p in sorted(views.items())] for split in _SPLITS
    }
    for path in pictures["train"] + pictures["test"]:
        state = path.stat()
        key.update(f"{path.relative_to(folder)}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())

    def decode() -> dict[str, NDArray[Any]]:
        arrays = {f"X_{split}": _decoded(pictures[split]) for split in _SPLITS}
        counts = {split: [len(kind) for kind in things[split]] for split in _SPLITS}
        labels = {f"y_{split}": np.repeat(np.arange(len(classes)), counts[split]) for split in _SPLITS}
        return {**arrays, **labels, "class_names": np.array(classes)}

    return cached(CARD.name, key.hexdigest(), decode)


def _things(folder: Path) -> list[dict[int, Path]]:
    """The pictures of each object in `folder` by the number of the view, objects by name."""
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    for name in sorted(os.listdir(folder)) if folder.is_dir() else []:
        match = _VIEW.fullmatch(name)
        if match:
            found[match["thing"]][int(match["view"])] = folder / name
    return list(found.values())


def _refuse_gaps(folder: Path, things: dict[str, list[list[dict[int, Path]]]]) -> None:
    everything = [views for kinds in things.values() for kind in kinds for views in kind]
    gaps = [views for views in everything if set(views) != set(range(1, VIEWS + 1))]
    if gaps or not everything:
        found = "none is there"
        if gaps:
            found = f"{next(iter(gaps[0].values())).name} has {', '.join(map(str, sorted(gaps[0])))}"
        raise DataError(
            f"every object in {folder} should have the views _001.png to _{VIEWS:03}.png, but {len(gaps)} of "
            f"{len(everything)} objects do not ({found}); add the missing views, or remove these objects."
        )


def _decoded(pictures: Sequence[Path]) -> NDArray[np.uint8]:
    """The pictures, twelve an object, as uint8 [objects, 12, 32, 32]."""
    out = np.empty((len(pictures), SIDE, SIDE), dtype=np.uint8)
    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter
        for i, picture in enumerate(pool.map(_grey, pictures)):
            out[i] = picture
    return out.reshape(-1, VIEWS, SIDE, SIDE)


def _grey(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    expected = f"{path} should be a PNG picture, but decoding it"
    kinds = (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError)
    with explained(expected, "render it again.", *kinds), Image.open(path, formats=["PNG"]) as picture:
        return np.asarray(picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


CARD = Card(
    name="modelnet40",
    task="classes",
    n_classes=40,
    records=12_311,
    devices=tuple(f"view {m}" for m in range(1, VIEWS + 1)),
    source="Things of 40 kinds, each seen from 12 sides (Princeton ModelNet40), 9,843 for training, 2,468 for test.",
    get="set data.path to a folder of rendered views, class/train/object_001.png to object_012.png and class/test/..., "
    "as published with multi-view CNNs for ModelNet40 (modelnet.cs.princeton.edu), or to an .npz file of them",
    load=load,
)
