"""The device network for text: a pretrained BERT or MPNet, mean pooling over a record's tokens, a linear map.

transformers is an optional part of the installation, so it is imported when a run needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dpzv.errors import ConfigError, DataError
from dpzv.models import NetworkRequest
from dpzv.models.layers import MappedFeatures, linear_layer, projection

__all__ = ["ATTENTION", "KINDS", "TextEncoder", "load_encoder", "make_text"]

ATTENTION = "sdpa"  # torch's own kernel: it never holds all scores of a batch, and does not mix records


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of encoder: transformers' kernel for its attention, and the public scale of the map behind it.

    `positions_after_pad` says that positions are numbered from the pad id on, so that fewer tokens than positions fit.
    """

    attention: str
    gain: float
    positions_after_pad: bool


KINDS = {
    # all-MiniLM-L6-v2's pooled states deviate by about 0.18, measured once on 5,500 Amazon reviews
    "bert": Kind(ATTENTION, 5.5, positions_after_pad=False),
    # transformers has no other kernel for it; its states deviate by 0.7 times what those of MiniLM do, measured once on
    # 342 segments of IMDb's training reviews
    "mpnet": Kind("eager", 8.0, positions_after_pad=True),
}
"""The encoders by the model_type in their config.json."""


class TextEncoder(MappedFeatures):
    """Token ids [B, L], short records filled up with `pad`, to embeddings [B, embedding].

    The encoder's last hidden states are averaged over a record's real tokens; a record without any gives the
    map's bias. The map starts as the identity where the embedding is as wide as the encoder, else as a random
    projection. Both are scaled by a public constant.

    Formal guarantee: no branch or mask depends on other records of the batch, so every record is treated by itself.
    """

    def __init__(self, encoder: nn.Module, embedding: int, generator: torch.Generator) -> None:
        super().__init__()
        config: Any = encoder.config
        self.pad = int(config.pad_token_id or 0)
        kind = KINDS[config.model_type]
        self.longest = int(config.max_position_embeddings) - (self.pad + 1 if kind.positions_after_pad else 0)
        self.encoder = encoder
        self.out = linear_layer(kind.gain * projection(embedding, int(config.hidden_size), generator))
        self.eval()

    def features(self, x: Tensor) -> Tensor:
        """The input [B, width of the encoder] of the map, for token ids of any integer type."""
        if x.shape[1] > self.longest:
            raise ConfigError(
                f"the encoder takes at most {self.longest} tokens a record and device, got {x.shape[1]}; "
                "lower data.tokens."
            )
        real = x != self.pad
        # transformers uses a mask of this shape as it is, but drops a flat mask if it hides nothing: then one record
        # could change the computation for the whole batch
        hidden = torch.zeros(real.shape, device=x.device).masked_fill_(~real, torch.finfo(torch.float32).min)
        states = self.encoder(input_ids=x.long(), attention_mask=hidden[:, None, None, :]).last_hidden_state
        states = states * real.unsqueeze(2)
        means: Tensor = states.sum(1) / real.sum(1, keepdim=True).clamp_min(1)
        return means

    def layers(self) -> list[list[nn.Module]]:
        """The tables of words and positions, the transformer layers, the map."""
        encoder: Any = self.encoder
        blocks: list[list[nn.Module]] = [[block] for block in encoder.encoder.layer]
        relative = getattr(encoder.encoder, "relative_attention_bias", None)  # a table that all layers of MPNet share
        return [[encoder.embeddings, *([] if relative is None else [relative])], *blocks, [self.out]]


def make_text(wanted: NetworkRequest) -> TextEncoder:
    """The pretrained encoder with its map; only the map is random at the start."""
    network = TextEncoder(load_encoder(wanted.encoder()), wanted.embedding, wanted.generator)
    if wanted.inputs > network.longest:
        raise ConfigError(
            f"the encoder takes at most {network.longest} tokens a device, got {wanted.inputs}; lower data.tokens."
        )
    return network


def load_encoder(folder: Path) -> nn.Module:
    """The pretrained encoder in a Hugging Face folder: float32, no dropout, without its unused pooling layer."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise ConfigError(
            "devices.model = 'bert' needs the package transformers, which is not installed; "
            "run: pip install 'dpzv[text]'."
        ) from None
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(
            f"the encoder {folder} should hold a readable config.json, but loading it failed "
            f"({_first_line(error)}); set data.encoder to the folder of a BERT or MPNet."
        ) from None
    if config.model_type not in KINDS:
        raise ConfigError(
            f"devices.model = 'bert' needs an encoder of type {' or '.join(map(repr, KINDS))}, got "
            f"'{config.model_type}' in {folder}; set data.encoder to one of these."
        )
    # no dropout, not even in training mode: two evaluations of a record must agree
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    try:
        with _quiet(transformers.utils.logging):
            encoder, found = transformers.AutoModel.from_pretrained(
                folder,
                config=config,
                add_pooling_layer=False,
                dtype=torch.float32,
                attn_implementation=KINDS[config.model_type].attention,
                output_loading_info=True,
                local_files_only=True,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"the encoder {folder} should hold the weights of an encoder, but loading them failed "
            f"({_first_line(error)}); get the folder again."
        ) from None
    if found["missing_keys"] or found["mismatched_keys"]:  # these would silently start at random
        raise DataError(
            f"the encoder {folder} should hold all its weights, but {len(found['missing_keys'])} are missing "
            f"and {len(found['mismatched_keys'])} have another shape; get the folder again."
        )
    return cast("nn.Module", encoder)


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Show no progress bar for a second's work, and no warning about the pooling layer that is left out on purpose."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
