"""A new mechanism for the head from a stranger: one file in `privacy/`, and the line that declares the head rule."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from dpzv import config as configuration
from dpzv import privacy, recipes
from dpzv.declarations import HEAD_RULES
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.run import resume, start

GROWING = '''
"""Head steps whose noise grows from step to step: a state that a checkpoint must keep."""

import numpy as np
from msgspec import Struct

from dpzv.privacy.head_steps import HeadNoise, HeadSteps, Mechanism, head_noise


class GrowingSteps(HeadSteps, frozen=True, kw_only=True, tag=True):
    """Head steps with at least the noise of `HeadSteps`, so that its pair dominates these, too."""


class GrowingNoise(HeadNoise):
    """The state counts the steps so far; every step has a tenth more noise than the one before."""

    def init(self, shapes):
        """No step yet."""
        return (np.zeros(1),)

    def update(self, state, stream, shapes):
        """More noise than before, and one step more."""
        factor = 1 + 0.1 * float(state[0][0])
        return [self.drawn(stream, shape, factor) for shape in shapes], (state[0] + 1,)


MECHANISM = Mechanism(GrowingSteps, GrowingNoise, head_noise)
'''


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The mechanism's file, and a head rule that declares it."""
    (tmp_path / "growing_steps.py").write_text(GROWING)
    monkeypatch.setattr(privacy, "__path__", [*privacy.__path__, str(tmp_path)])
    monkeypatch.setitem(HEAD_RULES, "growing", replace(HEAD_RULES["dp-sgd"], name="growing", mechanism="growing_steps"))
    return "growing"


def config_of(rule: str, source: str) -> configuration.Config:
    tree = recipes.tree("digits")
    settings = ("runtime.threads=1", "train.rounds=12", "head.steps=18", "head.final=private", "train.eval_every=100")
    for assignment in (f"head.rule={rule}", f"noise.source={source}", *settings):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


def test_a_new_mechanism_is_planned_charged_and_claimed(growing: str, tmp_path: Path) -> None:
    summary = start(config_of(growing, "exact"), tmp_path / "run", lambda snapshot: True, math.inf)
    assert summary is not None
    assert summary["guarantee"] is True
    assert summary["head_rule"] == growing
    ledger = read_ledger(tmp_path / "run")
    assert [type(event).__name__ for event in ledger.plan.events] == ["Releases", "GrowingSteps"]
    assert 0 < ledger.head_steps <= 18


def test_its_state_survives_an_interruption(growing: str, tmp_path: Path) -> None:
    config = config_of(growing, "seeded")
    assert start(config, tmp_path / "whole", lambda snapshot: True, math.inf) is not None
    assert start(config, tmp_path / "halved", lambda snapshot: snapshot.t < 7, math.inf) is None
    assert resume(tmp_path / "halved", lambda snapshot: True, math.inf) is not None
    whole, halved = (load_file(tmp_path / name / "weights" / "server.safetensors") for name in ("whole", "halved"))
    assert all(torch.equal(halved[name], w) for name, w in whole.items())
    plain = start(config_of("dp-sgd", "seeded"), tmp_path / "plain", lambda snapshot: True, math.inf)
    assert plain is not None
    weights = load_file(tmp_path / "plain" / "weights" / "server.safetensors")
    assert any(not torch.equal(weights[name], w) for name, w in whole.items())  # its noise is its own
