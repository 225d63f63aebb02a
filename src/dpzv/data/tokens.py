"""Texts as token ids, split between devices: each holds one of equal segments of every text.

A text's word pieces are split into segments of equal length (they differ by one at most), so a long text gives
every device the beginning of its own segment, and not the same first sentences to all. Every segment is an input of
its own: begin and end token around it, filled up with the encoder's pad id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpzv.data.encoder import pad_id
from dpzv.data.files import read_bytes
from dpzv.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Cutter", "cutter", "tokenizer_bytes"]

_FRAME = 2  # the begin and the end token
_REMEDY = "give a whole Hugging Face folder as data.encoder."


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
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # the package raises bare Exception
        raise DataError(
            f"{folder / 'tokenizer.json'} should describe a tokenizer, but reading it failed ({error}); {_REMEDY}"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    frame = tokenizer.encode("").ids
    if len(frame) != _FRAME:
        raise DataError(
            f"{folder / 'tokenizer.json'} should put one token before and one after a text, as BERT does, "
            f"got {len(frame)} tokens for an empty text; choose another data.encoder."
        )
    return Cutter(tokenizer, frame[0], frame[1], pad_id(folder), segments, tokens // segments)
