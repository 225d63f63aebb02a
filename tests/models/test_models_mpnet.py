"""The text network on a tiny MPNet: padding, rows by themselves, perturbed evaluations, layers, loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_encoders import HIDDEN, TOKENS, WORDS, generator, small_encoder
from tests.oracles import direction, whole
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models.layers import train_last
from dpzv.models.rowwise import require_rowwise
from dpzv.models.text import KINDS, TextEncoder, load_encoder
from dpzv.zo.directions import layout
from dpzv.zo.perturb import two_point

PAD = 1


def mpnet() -> nn.Module:
    return small_encoder("MPNet")


def texts(n: int) -> Tensor:
    """int32 ids [n, 12] of all lengths: the first record has no token, the last no padding."""
    ids = torch.randint(2, WORDS, (n, TOKENS), generator=generator(0), dtype=torch.int32)
    ids[torch.arange(TOKENS) >= (torch.arange(n) * TOKENS // (n - 1))[:, None]] = PAD
    return ids


def network(embedding: int = HIDDEN) -> TextEncoder:
    return TextEncoder(mpnet(), embedding, generator(1))


def test_padding_changes_nothing_and_pooling_is_the_mean_over_tokens() -> None:
    text, ids = network(), texts(7)
    plain: Any = mpnet()
    with torch.no_grad():
        h = text(ids)
        for row, n in zip(range(1, 7), (2, 4, 6, 8, 10, 12), strict=True):
            states = plain(input_ids=ids[row : row + 1, :n].long()).last_hidden_state  # without any padding
            torch.testing.assert_close(h[row], KINDS["mpnet"].gain * states[0].mean(0), atol=1e-4, rtol=1e-4)
    assert (h[0] == 0).all()  # no token, no embedding


@pytest.mark.parametrize("full", [True, False])
def test_rows_of_texts_stay_by_themselves(full: bool) -> None:
    """Also where all records are full, so that replacing one brings the first padding into the batch."""
    text, ids = network(10), texts(9)
    if full:
        ids[ids == PAD] = 7
    assert require_rowwise(text, ids, name="device 1") == 10
    replaced = ids.clone()
    replaced[4, 3:] = PAD
    others = torch.arange(9) != 4
    one, two = (two_point(text, x, direction(text, 3), 1e-3) for x in (ids, replaced))
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a[others], b[others])
        assert not torch.equal(a[4], b[4])


def test_an_mpnet_at_w_plus_and_minus_against_moved_copies() -> None:
    """Its table of relative positions, which all layers share, is moved too."""
    text, ids, lam = network(), texts(6), 1e-3
    h_plus, h_minus = two_point(text, ids, direction(text, 5), lam)
    where = layout(text)
    assert "encoder.encoder.relative_attention_bias.weight" in where.names
    assert len(where.names) == len(list(text.parameters()))
    for h, sign in ((h_plus, 1), (h_minus, -1)):
        copy = network()
        with torch.no_grad():
            for w, part in zip(layout(copy).parameters, whole(where, 5), strict=True):
                w += sign * lam * part
            torch.testing.assert_close(h, copy(ids), atol=1e-5, rtol=1e-5)
    assert (h_plus - h_minus).abs().max() > 1e-3


def test_the_layers_of_an_mpnet() -> None:
    for n, trained in ((1, 0), (2, 1), (4, 3), (5, None)):
        text = network()
        train_last(text, n)
        names = layout(text).names
        layers = {int(name.split(".")[3]) for name in names if ".layer." in name}
        assert layers == set(range(3 - (3 if trained is None else trained), 3))
        assert (len(names) == len(list(text.parameters()))) == (trained is None)


def test_positions_begin_behind_the_pad_id() -> None:
    """Sixteen positions hold fourteen tokens; one more would read beyond the table."""
    text = network()
    assert text(torch.full((2, 14), 5, dtype=torch.int32)).isfinite().all()
    with pytest.raises(ConfigError, match=r"at most 14 tokens a record and device, got 15; lower data\.tokens"):
        text(torch.full((2, 15), 5, dtype=torch.int32))


def test_loading_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mpnet().save_pretrained(tmp_path)  # type: ignore[operator]
    capfd.readouterr()
    text = TextEncoder(load_encoder(tmp_path), HIDDEN, generator(1))
    assert capfd.readouterr() == ("", "")
    torch.testing.assert_close(text(texts(5)), network()(texts(5)))
    text.train()  # even then two evaluations agree
    assert torch.equal(text(texts(5)), text(texts(5)))
