"""A fifth method from a stranger: its own file and one line in the table; several numbers a message pass unchanged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dpzv import config as configuration
from dpzv import methods, recipes
from dpzv.declarations import METHODS, MethodFacts
from dpzv.errors import ConfigError
from dpzv.runtime.run import start

THREE_WAYS = '''
"""One-sided differences along three directions a message: four embeddings up, three numbers down."""

import numpy as np
import torch

from dpzv.methods.rules import Answer, DeviceRule, ServerRule
from dpzv.methods.steps import zo_step
from dpzv.zo.clipping import clipped_rows
from dpzv.zo.estimator import one_sided
from dpzv.zo.perturb import perturbed

K = 3


class ThreeWaysDevice(DeviceRule):
    """Sends h and h at w_m + lam*u_k for three directions, and moves along all of them."""

    @torch.no_grad()
    def embeddings(self, x, position):
        """h, and h_plus for each direction."""
        sent = [self.network(x)]
        for k in range(K):
            with perturbed(self._u(K * position + k), self._lam):
                sent.append(self.network(x))
        return tuple(sent)

    def update(self, Delta, *, position, t):
        """w_m <- w_m - eta_m * (1/3) * sum_k Delta_k * u_k."""
        zo_step(self.velocity, self._u, K * position, Delta, self.steps, t)


class ThreeWaysServer(ServerRule):
    """Returns three means; each record's three differences are clipped together."""

    __slots__ = ()

    @torch.no_grad()
    def answer(self, asked):
        """Three means over the batch; the table keeps h."""
        losses = []
        for h in (*asked.h[1:], asked.h[0]):
            asked.put(h)
            losses.append(self.loss(self.head_rule.output(asked.t, asked.rows, 0.0), asked.y))
        differences = one_sided(losses[:-1], losses[-1], asked.lam)
        totals, grid = clipped_rows(differences, self.C, asked.contributes)
        return Answer(totals.sum(axis=0), grid, divisor=len(asked.y))
'''


@pytest.fixture
def three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The method's file, and its line in the table."""
    (tmp_path / "three_ways.py").write_text(THREE_WAYS)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    facts = MethodFacts(
        name="three-ways",
        module="three_ways",
        arrays=lambda K: 4,
        directions=False,
        pairs=False,
        slopes=True,
        numbers=lambda B, width, q, K, clipped: 3,
        per_record=False,
        backpropagates=False,
        published="downlink",
        two_points=False,
        releases="answers (three mean differences) over B={B} records each",
        several="",
    )
    monkeypatch.setitem(METHODS, "three-ways", facts)
    return "three-ways"


def config_of(*assignments: str) -> configuration.Config:
    tree = recipes.tree("digits")
    for assignment in (
        "runtime.threads=1",
        "head.rule=frozen",
        "head.refit_steps=4",
        "train.momentum=0",
        *assignments,
    ):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_a_fifth_method_trains_under_a_guarantee(three_ways: str, codec: str, tmp_path: Path) -> None:
    config = config_of(f"train.method={three_ways}", "train.rounds=6", f"codec.name={codec}")
    summary = start(config, tmp_path / "run", lambda snapshot: True, math.inf)
    assert summary is not None
    assert summary["guarantee"] is True
    assert "three mean differences" in summary["statement"]
    assert summary["protects"] == "records"  # its devices move by released numbers alone
    assert 3 * 8 <= summary["bytes_down"] / 6 < 3 * 8 + 16  # three numbers and a few bytes of framing


def test_a_fifth_method_learns(three_ways: str, tmp_path: Path) -> None:
    free = ("privacy.epsilon=inf", "privacy.C=inf", "noise.source=seeded", "train.eval_every=1000")
    config = config_of(f"train.method={three_ways}", "train.rounds=200", "train.eta_m=0.03", *free)
    untrained = start(config_of(*free, "train.rounds=0"), tmp_path / "untrained", lambda snapshot: True, math.inf)
    trained = start(config, tmp_path / "trained", lambda snapshot: True, math.inf)
    assert untrained is not None
    assert trained is not None
    assert trained["private_head"]["test_loss"] < untrained["private_head"]["test_loss"] - 0.1
    assert load_file(tmp_path / "trained" / "weights" / "device-1.safetensors")


def test_a_method_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="three-ways"):
        config_of("train.method=three-ways")
