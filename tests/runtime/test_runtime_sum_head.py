"""A head that only adds, with linear devices: a logistic regression between companies, from start to scorecard."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.data.columns import of_device
from dpzv.data.frames import train_and_test
from dpzv.errors import ConfigError
from dpzv.models.final_head import load_head
from dpzv.privacy.label_counts import LabelCounts, frequencies
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.run import load_data, resume, start
from dpzv.runtime.scorecard import scorecard
from tests.runtime.short_runs import changed, run

SUM = ("head.model=sum", "head.rule=frozen", "head.final=private", "devices.embedding=1", "devices.start=dp-whiten")


def config_of(*assignments: str) -> Config:
    """A short run on breast-cancer, three laboratories with ten numeric columns each."""
    return changed("breast-cancer", "train.rounds=12", "train.eval_every=100", *assignments)


def outputs_of(path: Path, config: Config) -> torch.Tensor:
    """The outputs for test records by the formula: base rate plus every device's linear map of whitened columns."""
    data, total = load_data(config), load_file(path / "weights" / "server.safetensors")["base"].double()
    for m, x in enumerate(data.x_test, 1):
        w = {name: t.double() for name, t in load_file(path / "weights" / f"device-{m}.safetensors").items()}
        total = total + ((torch.from_numpy(x).double() - w["mean"]) @ w["matrix"]) @ w["linear.weight"].T
        total = total + w["linear.bias"]
    return total


def test_it_learns_what_logistic_regression_learns(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    learning = ("privacy.epsilon=inf", "train.rounds=600", "train.B=455", "train.eta_m=0.02", "privacy.C=10")
    config = config_of(*SUM, *learning, "head.base=0.63", "train.schedule=cosine")
    summary, data = run(config, tmp_path), load_data(config)
    joined = LogisticRegression(max_iter=10_000).fit(np.hstack(data.x_train), data.y_train)
    best = roc_auc_score(data.y_test, joined.decision_function(np.hstack(data.x_test)))
    assert summary["test_auc"] > best - 0.015
    assert summary["private_head"]["test_auc"] == summary["test_auc"]  # there is no other head
    by_formula = outputs_of(tmp_path, config)
    assert summary["test_auc"] == pytest.approx(roc_auc_score(data.y_test, by_formula[:, 0].numpy()), abs=1e-9)
    head = load_head(tmp_path / "weights")
    assert float(head(torch.zeros(1, 3))) == pytest.approx(math.log(0.63 / 0.37))


def test_the_scorecard_gives_the_output_from_raw_values(tmp_path: Path) -> None:
    config = config_of(*SUM, "train.eta_m=0.05")
    run(config, tmp_path)
    from sklearn.datasets import load_breast_cancer

    raw, encoded = load_breast_cancer(as_frame=True).data, load_data(config).x_test[1]
    columns = of_device(config.data.columns, 2)
    weights = load_file(tmp_path / "weights" / "device-2.safetensors")
    theirs = ((torch.from_numpy(encoded) - weights["mean"]) @ weights["matrix"]) @ weights["linear.weight"].T
    theirs = (theirs + weights["linear.bias"]).numpy()[:, 0]
    card = scorecard(tmp_path / "weights" / "device-2.safetensors", 2, columns)
    ours = np.full(len(raw), card.intercept[0])
    for line in card.lines:
        (column,) = (column for column in columns if column.name == line.column)
        ours += line.weights[0] * raw[line.column].clip(column.low, column.high).to_numpy()
    np.testing.assert_allclose(ours[train_and_test("breast-cancer", len(raw))[1]], theirs, atol=1e-4)
    assert np.ptp(theirs) > 0.01
    effects = [line.effect for line in card.lines]
    assert effects == sorted(effects, reverse=True)
    with pytest.raises(ConfigError, match="only a linear device"):
        scorecard(tmp_path / "weights" / "server.safetensors", 2, columns)


def test_a_resumed_run_is_the_one_that_was_not_interrupted(tmp_path: Path) -> None:
    config = config_of(*SUM, "head.base=count", "privacy.base_share=0.2")
    run(config, tmp_path / "whole")
    assert start(config, tmp_path / "cut", lambda snapshot: snapshot.t < 5, math.inf) is None
    assert resume(tmp_path / "cut", lambda snapshot: True, math.inf) is not None
    for name in ("server", "device-1", "device-3"):
        one, other = (load_file(tmp_path / run / "weights" / f"{name}.safetensors") for run in ("whole", "cut"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert not torch.equal(one["matrix"], torch.eye(10))
    transcripts = [(tmp_path / run / "transcript.jsonl").read_bytes() for run in ("whole", "cut")]
    assert transcripts[0] == transcripts[1]


def test_with_secret_noise_labels_are_counted_once(tmp_path: Path) -> None:
    config = config_of(*SUM, "head.base=count", "privacy.base_share=0.2", "noise.source=exact")
    assert start(config, tmp_path, lambda snapshot: snapshot.t < 5, math.inf) is None
    from dpzv.privacy.events import Event, unpacked
    from dpzv.privacy.ledger_file import snapshot as read

    def counted() -> list[LabelCounts]:
        rows = read(tmp_path / "ledger.sqlite", lambda db: db.execute("SELECT event FROM events").fetchall())
        return [event for (packed,) in rows if isinstance(event := unpacked(packed, Event), LabelCounts)]

    (before,) = counted()
    summary = resume(tmp_path, lambda snapshot: True, math.inf)
    assert counted() == [before]
    assert summary is not None
    assert summary["guarantee"] is True
    assert "label counts for the base rate" in summary["statement"]
    share = frequencies(before.counts, 456)[1]
    base = load_file(tmp_path / "weights" / "server.safetensors")["base"]
    assert float(base) == pytest.approx(math.log(share / (1 - share)), rel=1e-5)
    assert read_ledger(tmp_path).plan.mu_base > 0


@pytest.mark.parametrize("model", ["sum", "network"])
def test_both_heads_start_at_the_base_rate(tmp_path: Path, model: str) -> None:
    config = config_of(*SUM, f"head.model={model}", "head.base=0.9", "train.rounds=0")
    run(config, tmp_path)
    head = load_head(tmp_path / "weights")
    with torch.no_grad():
        assert float(torch.sigmoid(head(torch.zeros(1, 3)))) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (("devices.embedding=2",), "needs devices of 1 number a record.*got 2, 2, 2; set devices.embedding to 1"),
        (("head.rule=dp-sgd",), "head.rule must be 'frozen', got 'dp-sgd'"),
        (("head.base=1.5",), "strictly between 0 and 1, got 1.5"),
        (("head.base=[0.5, 0.5]",), "probability of label 1, got 2 values"),
        (("head.base=often",), "head.base: .*choose one of: count"),
        (("head.base=count", "privacy.base_share=0"), "counting labels needs a share"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, assignments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(config_of(*SUM, *assignments), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("K", [1, 8])
def test_the_server_counts_the_records_that_it_clips(tmp_path: Path, K: int) -> None:
    """At a clip far below all differences nearly every record is clipped, far above them none is."""
    shares = []
    for C in (1e-9, 1e3):
        config = config_of(*SUM, f"privacy.C={C}", f"train.directions={K}")
        shares.append([one["clipped_share"] for one in run(config, tmp_path / str(C))["participation"]])
    assert min(shares[0]) > 0.99
    assert shares[1] == [0, 0, 0]
    config = config_of(*SUM, "privacy.C=1e-9", f"train.directions={K}")
    assert start(config, tmp_path / "cut", lambda snapshot: snapshot.t < 5, math.inf) is None
    again = resume(tmp_path / "cut", lambda snapshot: True, math.inf)
    assert again is not None
    assert [one["clipped_share"] for one in again["participation"]] == shares[0]


@pytest.mark.soak
@pytest.mark.parametrize(("epsilon", "short"), [(5, 0.015), (1, 0.1)])
def test_under_its_claim_it_comes_close_to_logistic_regression(tmp_path: Path, epsilon: int, short: float) -> None:
    """The recipe as it is shipped, with secret noise; the figures are in docs/results.md."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    tree = configuration.merge(recipes.tree("breast-cancer-scorecard"), {"privacy": {"epsilon": epsilon}})
    config = configuration.parse(tree)
    summary, data = run(config, tmp_path), load_data(config)
    joined = LogisticRegression(max_iter=10_000).fit(np.hstack(data.x_train), data.y_train)
    best = roc_auc_score(data.y_test, joined.decision_function(np.hstack(data.x_test)))
    assert summary["guarantee"] is True
    assert summary["test_auc"] > best - short
