"""Text encoders of a few thousand weights, large enough that every layer matters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

HIDDEN, TOKENS, WORDS = 32, 12, 500


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_encoder(kind: str, seed: int = 0, **settings: object) -> nn.Module:
    """An encoder of transformers, `kind` "Bert" or "MPNet", with large random weights."""
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
        **settings,
    )
    made: nn.Module = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator(seed)) * 0.2)
    return made
