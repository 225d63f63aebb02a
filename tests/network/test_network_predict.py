"""Predictions: ids that a device does not know are left out and named, and the files say what was predicted."""

from __future__ import annotations

import asyncio
import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from federation import Parties, config_of
from numpy.typing import NDArray

from dpzv.data.party_records import LabelSettings
from dpzv.errors import DataError, PeerError
from dpzv.network import predict, prediction_files
from dpzv.network.predict import Predictor
from dpzv.network.prediction_files import write_predictions, write_unknown
from dpzv.runtime.run_folder import RunFolder

CONFIG = config_of("head.rule=frozen", "train.rounds=8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parties, Path]:
    """The parties of a finished run, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    parties = Parties.made(folder / "parties")
    assert asyncio.run(asyncio.wait_for(parties.together(CONFIG, folder), 60)) is not None
    return parties, folder


def asked(trained: tuple[Parties, Path], wanted: NDArray[np.uint8]) -> tuple[torch.Tensor, NDArray[np.bool_]]:
    """What the head says of the known records, and which device lacks which."""
    parties, out = trained

    async def run() -> tuple[torch.Tensor, NDArray[np.bool_]]:
        predictor = Predictor(CONFIG, parties.labels, RunFolder.existing(out / "server"), lambda: wanted)
        return await parties.answered(predictor, CONFIG, out), predictor.unknown

    return asyncio.run(run())


def lacking(parties: Parties, wanted: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which device lacks which record, by comparing words."""
    own = [{bytes(row) for row in features.hashes} for features in parties.features]
    return np.array([[bytes(row) not in known for known in own] for row in wanted])


def test_ids_that_a_device_lacks_are_left_out_and_the_others_predicted(
    trained: tuple[Parties, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every device lacks others, one id is in no file; the rest gets what it gets when asked for alone."""
    monkeypatch.setattr(predict, "AT_ONCE", 100)  # so that the head runs while records are on their way
    parties, out = trained
    hashes = parties.labels.hashes
    nobody = np.full((1, 16), 7, np.uint8)
    wanted = np.concatenate([hashes[:200], nobody, hashes[200:700]])
    expected = lacking(parties, wanted)
    assert expected[200].all()
    assert (expected.any(axis=0) & (expected.sum(axis=0) < 100)).all()
    output, unknown = asked(trained, wanted)
    assert np.array_equal(unknown, expected)
    alone, nothing = asked(trained, wanted[~expected.any(axis=1)])
    assert not nothing.any()
    assert torch.equal(output, alone)
    assert not (out / "server" / ".prediction").exists()  # embeddings wait in a file without a name


def test_nothing_is_predicted_if_no_device_or_not_every_device_knows_an_id(trained: tuple[Parties, Path]) -> None:
    parties, _ = trained
    lacks = lacking(parties, parties.labels.hashes)
    one_each = [parties.labels.hashes[np.flatnonzero(lacks[:, m] & (lacks.sum(axis=1) == 1))[0]] for m in (2, 3)]
    with pytest.raises(DataError, match="at least one of the 2 ids must be in every device's file, but none is"):
        asked(trained, np.stack(one_each))
    with pytest.raises(PeerError, match=r"device \d \(\w+\) has no record for any of 3 ids; check the ids"):
        asked(trained, np.full((3, 16), 7, np.uint8))


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def settings(task: str, **more: object) -> LabelSettings:
    return LabelSettings(file="own.csv", id="id", label="y", task=task, **more)


def test_every_class_has_a_probability(tmp_path: Path) -> None:
    path, output = tmp_path / "said.csv", torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]])
    write_predictions(path, settings("classes", classes=("bus", "a, b", "van")), ["7", 'x,"y'], output)
    first, second = lines(path)
    assert (first["id"], first["prediction"], second["id"], second["prediction"]) == ("7", "van", 'x,"y', "bus")
    total = 1 + math.e + math.e**3
    for name, expected in (("bus", 1 / total), ("a, b", math.e / total), ("van", math.e**3 / total)):
        assert float(first[f"probability of {name}"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n", [0, 1, 5, 6, 13])
def test_lines_are_the_same_however_many_are_made_at_a_time(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids come one by one, as those that every device has, and each gets its own prediction."""
    output, path, written = torch.arange(2.0 * n).view(n, 2).sin(), tmp_path / "said.csv", []
    for at_once in (1000, 3):
        monkeypatch.setattr(prediction_files, "AT_ONCE", at_once)
        write_predictions(path, settings("classes", classes=("x", "y")), (str(i) for i in range(n)), output)
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert [line["id"] for line in lines(path)] == [str(i) for i in range(n)]
    assert [line["prediction"] for line in lines(path)] == ["xy"[place] for place in output.argmax(1)]


def test_two_classes_have_the_probability_of_the_second_and_numbers_their_units(tmp_path: Path) -> None:
    path = tmp_path / "said.csv"
    write_predictions(path, settings("binary", classes=("no", "yes")), ["a", "b"], torch.tensor([[2.0], [-1.0]]))
    assert [line["class"] for line in lines(path)] == ["yes", "no"]
    values = [float(line["prediction"]) for line in lines(path)]
    assert values == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.e)], rel=1e-5)
    write_predictions(path, settings("regression", low=0.0, high=10.0), ["a", "b"], torch.tensor([[0.5], [-1.0]]))
    assert lines(path) == [{"id": "a", "prediction": "7.5"}, {"id": "b", "prediction": "0.0"}]


def test_unknown_ids_are_named_beside_the_predictions_and_an_old_list_does_not_stay(tmp_path: Path) -> None:
    path, unknown = tmp_path / "said.csv", np.array([[True, False], [False, False], [True, True]])
    file = write_unknown(path, ["a", "b", "c"], ["bank", "shop"], unknown)
    assert file == tmp_path / "said.unknown.csv"
    assert lines(file) == [{"id": "a", "unknown to": "bank"}, {"id": "c", "unknown to": "bank shop"}]
    assert write_unknown(path, ["b"], ["bank", "shop"], unknown[1:2]) is None
    assert not file.exists()
