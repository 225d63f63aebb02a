"""What a training is compared with: one party alone is a run without the others, and backpropagation learns more."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.errors import ConfigError
from dpzv.runtime.baselines import UNTRAINED, alone, parties
from dpzv.runtime.ceiling import ceiling
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import load_data, run, start
from dpzv.runtime.run_plan import noise_of, plan_of

LISTS = {
    "devices": {"embedding": [1, 3, 2, 4], "hidden": 8},
    "train": {"rounds": 6, "B": 128, "lam": [1e-3, 2e-3, 3e-3, 4e-3], "target": [0.5, 0.6]},
    "head": {"refit_steps": 20, "steps": 4},
    "noise": {"source": "seeded"},
}


def recipe(*changes: configuration.Tree) -> Config:
    tree = recipes.tree("digits")
    for change in changes:
        tree = configuration.merge(tree, change)
    return configuration.parse(tree)


def test_a_party_alone_has_its_own_columns_and_its_own_values_of_every_list() -> None:
    config = recipe(LISTS)
    assert list(parties(config)) == [1, 2, 3, 4]
    second = alone(config, 2)
    assert (second.data.devices, second.devices.embedding, second.devices.hidden) == ((2,), 3, 8)
    assert (second.train.lam, second.train.target, second.train.rounds) == (2e-3, (0.5, 0.6), 6)
    assert (second.privacy, second.head) == (config.privacy, config.head)
    assert configuration.parse(configuration.msgspec.toml.decode(configuration.render(second))) == second
    # of some devices: lists have a value for each of these
    some = recipe(LISTS, {"data": {"devices": [1, 4]}, "devices": {"embedding": [5, 7]}, "train": {"lam": 1e-3}})
    assert list(parties(some)) == [1, 4]
    assert (alone(some, 4).data.devices, alone(some, 4).devices.embedding) == ((4,), 7)


def test_a_run_with_one_party_is_the_run_in_which_the_others_do_not_exist(tmp_path: Path) -> None:
    config = alone(recipe(LISTS), 3)
    found = start(config, tmp_path / "alone", lambda snapshot: True, float("inf"))
    whole = catalogue.load("digits")
    one = replace(whole, devices=("rows 5-6",), x_train=(whole.x_train[2],), x_test=(whole.x_test[2],))
    networks = partial(make_networks, config, one)
    expected = run(config, one, networks, tmp_path / "one", lambda snapshot: True)
    assert found is not None
    assert expected is not None
    assert (found["test_loss"], found["bytes_up"]) == (expected["test_loss"], expected["bytes_up"])
    transcripts = [(tmp_path / name / "transcript.jsonl").read_bytes() for name in ("alone", "one")]
    assert transcripts[0] == transcripts[1]
    assert transcripts[0].count(b"\n") == 6  # all rounds are its own
    # another party sees other columns
    other = start(alone(recipe(LISTS), 2), tmp_path / "other", lambda snapshot: True, float("inf"))
    assert other is not None
    assert other["test_loss"] != found["test_loss"]
    assert other["data"] == found["data"]  # the records are the same


@pytest.mark.parametrize("devices", [[5], [2, 2]])
def test_devices_that_are_not_there_are_refused(devices: list[int]) -> None:
    with pytest.raises(ConfigError, match="must name devices 1 to 4 of 'digits', each at most once"):
        load_data(recipe({"data": {"devices": devices}}))


def test_backpropagation_learns_more_than_a_head_over_untrained_devices(tmp_path: Path) -> None:
    short = {"devices": {"embedding": 2}, "head": {"refit_steps": 250}, "noise": {"source": "seeded"}}
    untrained = start(recipe(short, UNTRAINED), tmp_path / "run", lambda snapshot: True, float("inf"))
    config = recipe(short, UNTRAINED, {"privacy": {"epsilon": float("inf")}})
    found = ceiling(config, load_data(config))
    assert untrained is not None
    assert found["test_accuracy"] > untrained["test_accuracy"] + 0.1
    assert found["test_accuracy"] > 0.85
    assert ceiling(config, load_data(config)) == found


def test_devices_whose_step_is_0_stay_as_they_start_while_the_head_learns(tmp_path: Path) -> None:
    still = {"train": {"rounds": 60, "eta_m": 0.0, "momentum": 0.9}, "head": {"rule": "sgd", "eta_0": 0.5}}
    paper = {"privacy": {"accounting": "paper"}, "head": {"final": "refit", "refit_steps": 20}}
    config = recipe(LISTS, still, paper, {"head": {"rule": "sgd", "eta_0": 0.5}})
    data = load_data(config)
    before = make_networks(config, data, plan_of(config, len(data.y_train), len(data.x_train)), noise_of(config))
    summary = start(config, tmp_path / "run", lambda snapshot: True, float("inf"))
    assert summary is not None
    assert summary["private_head"]["trained"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert summary["private_head"]["test_loss"] < 0.9 * lines[0]["test_loss"]
    for m, network in enumerate(before, 1):
        after = load_file(tmp_path / "run" / "weights" / f"device-{m}.safetensors")
        assert all(torch.equal(after[name], value) for name, value in network.state_dict().items())
