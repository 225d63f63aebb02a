"""With no noise and no clip a synchronous run equals the centralised script bit for bit."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch

from dpzv import config as configuration
from dpzv import recipes
from dpzv.data import catalogue
from dpzv.models.head import seeded_head
from dpzv.privacy.noise import SeededNoise
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import run
from dpzv.runtime.run_plan import plan_of
from tests.runtime.centralised import Centralised

T = 60


def test_a_synchronous_run_equals_forty_lines_in_one_place(tmp_path: Path) -> None:
    tree = recipes.tree("digits")
    for assignment in (
        "privacy.epsilon=inf",
        "privacy.C=inf",
        f"train.rounds={T}",
        "train.momentum=0",
        "train.eta_m=0.01",
        "head.rule=frozen",
        "head.final=private",
        "codec.name=float32",
    ):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    config = configuration.parse(tree)
    data = catalogue.load("digits")
    networks = make_networks(config, data, plan_of(config, len(data.y_train), 4), SeededNoise(0))
    federated = copy.deepcopy(networks)
    run(config, data, lambda *_: federated, tmp_path / "run", lambda snapshot: True)

    head = seeded_head(4 * 8, config.head.hidden, 10, config.train.seed)
    xs, y = [torch.from_numpy(x) for x in data.x_train], torch.from_numpy(data.y_train)
    Deltas = Centralised(networks, head, xs, y, T, config.train.B, 1e-3, 0.01, config.train.seed).train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "transcript.jsonl").read_text().splitlines()]
    assert [float.fromhex(line["Delta"]) for line in lines] == Deltas
    assert len(Deltas) == T
    assert any(Deltas)
    for one, other in zip(networks, federated, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
