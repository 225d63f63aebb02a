"""The text network on a tiny BERT: padding, rows by themselves, perturbed evaluations, layers, loading, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import method_memory
from benchmarks.method_memory import BAR
from small_encoders import HIDDEN, TOKENS, WORDS, generator, small_encoder
from tests.oracles import direction, whole
from torch import Tensor, nn

from dpzv.errors import ConfigError, DataError
from dpzv.models.layers import train_last
from dpzv.models.rowwise import require_rowwise
from dpzv.models.text import ATTENTION, KINDS, TextEncoder, load_encoder
from dpzv.runtime.memory_peak import measured
from dpzv.zo.directions import layout
from dpzv.zo.perturb import step, two_point

transformers = pytest.importorskip("transformers")

GAIN = KINDS["bert"].gain


def bert(seed: int = 0) -> nn.Module:
    return small_encoder("Bert", seed, attn_implementation=ATTENTION)


def texts(n: int, seed: int = 0) -> Tensor:
    """int32 ids [n, 12] of all lengths: the first record has no token, the last no padding."""
    ids = torch.randint(1, WORDS, (n, TOKENS), generator=generator(seed), dtype=torch.int32)
    lengths = torch.arange(n) * TOKENS // (n - 1)
    ids[torch.arange(TOKENS) >= lengths[:, None]] = 0
    return ids


def network(embedding: int = HIDDEN) -> TextEncoder:
    return TextEncoder(bert(), embedding, generator(1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bert().save_pretrained(tmp_path)  # type: ignore[operator]
    return tmp_path


def test_padding_changes_nothing_and_pooling_is_the_mean_over_tokens() -> None:
    text, ids = network(), texts(7)
    plain: Any = bert()
    with torch.no_grad():
        h = text(ids)
        for row, n in zip(range(1, 7), (2, 4, 6, 8, 10, 12), strict=True):
            states = plain(input_ids=ids[row : row + 1, :n].long()).last_hidden_state  # without any padding
            torch.testing.assert_close(h[row], GAIN * states[0].mean(0), atol=1e-4, rtol=1e-4)
    assert (h[0] == 0).all()  # no token, no embedding


@pytest.mark.parametrize("full", [True, False])
def test_rows_of_texts_stay_by_themselves(full: bool) -> None:
    """Also where all records are full, so that replacing one brings the first padding into the batch."""
    text, ids = network(10), texts(9)
    if full:
        ids[ids == 0] = 7
    assert require_rowwise(text, ids, name="device 1") == 10
    replaced = ids.clone()
    replaced[4, 3:] = 0
    others = torch.arange(9) != 4
    for a, b in zip(
        two_point(text, ids, direction(text, 3), 1e-3), two_point(text, replaced, direction(text, 3), 1e-3), strict=True
    ):
        assert torch.equal(a[others], b[others])
        assert not torch.equal(a[4], b[4])


def test_a_bert_at_w_plus_and_minus_against_moved_copies() -> None:
    text, ids, lam = network(), texts(6), 1e-3
    h_plus, h_minus = two_point(text, ids, direction(text, 5), lam)
    u = whole(layout(text), 5)
    for h, sign in ((h_plus, 1), (h_minus, -1)):
        copy = network()
        with torch.no_grad():
            for w, part in zip(layout(copy).parameters, u, strict=True):
                w += sign * lam * part
            torch.testing.assert_close(h, copy(ids), atol=1e-5, rtol=1e-5)
    assert (h_plus - h_minus).abs().max() > 1e-3


def test_the_last_layer_of_a_bert_is_the_map() -> None:
    for n, expected in ((1, {"out"}), (2, {"encoder.encoder.layer.2", "out"}), (5, None)):
        text = network()
        train_last(text, n)
        names = layout(text).names
        if expected is None:
            assert len(names) == len(list(text.parameters()))  # the tables and all three layers
        else:
            assert {name for name in names if not name.startswith(tuple(expected))} == set()
            assert {part for part in expected if any(name.startswith(part) for name in names)} == expected
    text = network()
    train_last(text, 3)
    before = {name: weight.clone() for name, weight in text.named_parameters()}
    two_point(text, texts(3), direction(text, 1), 1e-3)
    step(direction(text, 1), 1e-2)
    moved = {name for name, weight in text.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == set(layout(text).names)
    assert not any("embeddings" in name or "layer.0" in name for name in moved)
    with pytest.raises(ConfigError, match="the 5 layers of this network, got 6"):
        train_last(network(), 6)


def test_the_map_is_the_identity_or_a_projection() -> None:
    same = network().out.weight.detach()
    torch.testing.assert_close(same, GAIN * torch.eye(HIDDEN))
    narrow = network(10).out.weight.detach() / GAIN
    torch.testing.assert_close(narrow @ narrow.T, torch.eye(10), atol=1e-5, rtol=0)
    state = torch.random.get_rng_state()
    encoder = bert()
    torch.random.set_rng_state(state)
    one, two = TextEncoder(encoder, 10, generator(1)), TextEncoder(encoder, 10, generator(2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(one.out.weight, network(10).out.weight)
    assert not torch.equal(one.out.weight, two.out.weight)


def test_too_many_tokens() -> None:
    with pytest.raises(ConfigError, match=r"at most 16 tokens a record and device, got 20; lower data\.tokens"):
        network()(torch.ones(2, 20, dtype=torch.int32))


def test_loading_a_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = torch.random.get_rng_state()
    loaded = load_encoder(folder)
    assert torch.equal(state, torch.random.get_rng_state())
    assert capfd.readouterr() == ("", "")  # no bars, no reports
    text = TextEncoder(loaded, HIDDEN, generator(1))
    torch.testing.assert_close(text(texts(5)), network()(texts(5)))
    text.train()  # even then two evaluations agree
    assert torch.equal(text(texts(5)), text(texts(5)))


def test_folders_that_are_no_whole_bert(folder: Path, tmp_path: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="should hold the weights of an encoder"):
        load_encoder(folder)
    weights.unlink()
    with pytest.raises(DataError, match="should hold the weights of an encoder"):
        load_encoder(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConfigError, match="an encoder of type 'bert' or 'mpnet', got 'gpt2'"):
        load_encoder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match=r"should hold a readable config\.json"):
        load_encoder(folder)


def test_missing_weights_do_not_start_at_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = folder / "model.safetensors"
    state = load_file(weights)
    state.pop("encoder.layer.1.output.dense.weight")
    save_file(state, weights, metadata={"format": "pt"})
    with pytest.raises(DataError, match="but 1 are missing"):
        load_encoder(folder)


def test_without_transformers_the_command_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"run: pip install 'dpzv\[text\]'"):
        load_encoder(folder)


def test_a_zeroth_order_round_of_a_bert_takes_inference_memory() -> None:
    """With the sizes of the recipes: `python -m benchmarks.method_memory`."""
    inference = measured("small-bert", "inference", "cpu")
    weights = 4 * (30522 * 192 + 512 * 192 + 2 * 12 * 192 * 192)
    assert weights < inference < 1.5 * weights  # the measure sees the model
    assert measured("small-bert", "dpzv", "cpu") <= BAR * inference
    assert measured("small-bert", "vafl", "cpu") > 1.5 * inference  # and would see a gradient


def test_the_peak_of_one_method_is_printed_as_the_pages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks.method_memory mpnet dpzv cpu`."""
    monkeypatch.setattr(method_memory, "measured", lambda *asked: {("mpnet", "dpzv", "cpu"): 3 << 20}[asked])
    assert method_memory.main(["mpnet", "dpzv", "cpu"]) == "3.0 MiB"
