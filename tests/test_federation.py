"""The Python interface: any modules and arrays, and what it says to those that do not fit."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import dpzv
from dpzv import Federation
from dpzv.errors import ConfigError, DpzvError
from dpzv.rng import numpy_generator, torch_generator
from dpzv.runtime.journal import Snapshot

QUICK = {
    "train.rounds": np.int64(4),  # numbers of numpy are numbers
    "train.B": 64,
    "noise.source": "seeded",
    "privacy.delta_dp": 1e-3,
    "head.refit_steps": 20,
    "head.hidden": 8,
    "runtime.threads": 1,
}
PLAIN = QUICK | {"head.rule": "frozen"}  # a private head takes seconds to plan
TASKS = {"binary": 0, "classes": 3, "regression": 0}


def columns(D: int = 300, seed: int = 0) -> list[np.ndarray]:
    """Features of two devices, float64 [D, 4] and [D, 3]."""
    rng = numpy_generator(seed, "test federation")
    return [rng.normal(size=(D, 4)), rng.normal(size=(D, 3))]


def labels(task: str, xs: list[np.ndarray]) -> np.ndarray:
    """Labels [D] of a task that depend on both devices."""
    score = xs[0][:, 0] + xs[1][:, 0]
    return {"binary": (score > 0).astype(int), "classes": np.digitize(score, [-0.5, 0.5]), "regression": score}[task]


@torch.no_grad()
def seeded(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module at a start that does not depend on the global random state."""
    generator = torch_generator(seed, "test federation")
    for w in module.parameters():
        w.copy_(torch.randn(w.shape, generator=generator) / math.sqrt(w.shape[-1]))
    return module


def nets() -> list[nn.Module]:
    """A linear and a deeper network for `columns()`."""
    return [seeded(nn.Linear(4, 5)), seeded(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)), 1)]


def weights(modules: list[nn.Module]) -> list[Tensor]:
    """All parameters and buffers, copied."""
    return [value.clone() for module in modules for value in module.state_dict().values()]


class CentredBatch(nn.Linear):
    """A network that mixes the records of a batch: it subtracts their mean."""

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings of the batch, centred."""
        return super().forward(x - x.mean(dim=0))


@pytest.mark.parametrize("task", TASKS)
def test_fit_predict_and_summary_for_every_task(task: str, tmp_path: Path) -> None:
    xs, networks = columns(), nets()
    before = weights(networks)
    federation = Federation(networks, xs, labels(task, xs), task=task, n_classes=TASKS[task])  # type: ignore[arg-type]
    assert federation.fit(QUICK, out=tmp_path / "run") is federation
    assert all(not torch.equal(a, b) for a, b in zip(before, weights(networks), strict=True))  # trained in place
    predicted = federation.predict(columns(50, seed=1))
    assert predicted.shape == (50,)
    if task == "binary":
        assert np.all((predicted > 0) & (predicted < 1))
    elif task == "classes":
        assert set(predicted) <= {0, 1, 2}
    assert np.isfinite(predicted).all()
    summary = federation.summary()
    assert summary["rounds"] == 4
    assert summary["data"]["records"] == 270
    assert 0 < summary["epsilon"] <= 1
    assert (summary["test_auc"] is None) == (task != "binary")
    assert (summary["test_accuracy"] is None) == (task == "regression")
    assert (tmp_path / "run" / "summary.json").is_file()
    second = Federation(nets(), xs, labels(task, xs), task=task, n_classes=TASKS[task])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="already holds a finished run; choose another folder") as refused:
        second.fit(QUICK, out=tmp_path / "run")
    assert "--" not in str(refused.value)  # Python has no options


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_federation_predicts_the_same_and_nothing_is_pickled(task: str, tmp_path: Path) -> None:
    xs, new = columns(), columns(50, seed=1)
    federation = Federation(nets(), xs, labels(task, xs), task=task, n_classes=TASKS[task])  # type: ignore[arg-type]
    federation.fit(PLAIN, out=tmp_path / "run").save(tmp_path / "saved")
    for folder in ("run", "saved"):
        others = [nn.Linear(4, 5), nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))]
        loaded = Federation.load(tmp_path / folder, others)
        assert np.array_equal(loaded.predict(new), federation.predict(new))
        assert loaded.summary() == federation.summary()
        assert loaded.epsilon_spent == federation.epsilon_spent
        with pytest.raises(ConfigError, match="has no records, got a fit; make a new one"):
            loaded.fit(QUICK)
        loaded.save(tmp_path / f"{folder}-again")
    files = [path for path in (tmp_path / "run-again").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}  # the final head may not leave
    with pytest.raises(ConfigError, match=r"saved in a new folder, got .*saved, which has content"):
        federation.save(tmp_path / "saved")


def test_what_is_no_saved_model_is_refused_in_a_sentence(fitted: Federation, tmp_path: Path) -> None:
    fitted.save(tmp_path / "saved")
    for folder, networks, sentence in (
        (tmp_path, nets(), "is not a saved model"),
        (tmp_path / "saved", nets()[:1], "has 2 devices, got 1 networks"),
        (tmp_path / "saved", nets()[::-1], "do not fit device 1's network"),
    ):
        with pytest.raises(DpzvError, match=sentence):
            Federation.load(folder, networks)
    (tmp_path / "saved" / "weights" / "final.safetensors").write_bytes(b"junk")
    with pytest.raises(DpzvError, match="is not a saved model"):
        Federation.load(tmp_path / "saved", nets())


def test_probabilities_of_all_classes(fitted: Federation) -> None:
    xs = columns()
    several = Federation(nets(), xs, labels("classes", xs), task="classes", n_classes=3).fit(PLAIN)
    found = several.predict_proba(X)
    assert found.shape == (300, 3)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(found.argmax(axis=1), several.predict(X))
    two = fitted.predict_proba(X)
    assert np.allclose(two.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(two[:, 1], fitted.predict(X))
    number = Federation(nets(), xs, labels("regression", xs), task="regression").fit(PLAIN)
    with pytest.raises(ConfigError, match="only classes have probabilities"):
        number.predict_proba(X)


def test_progress_epsilon_so_far_and_what_a_federation_says_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, float, float]] = []
    federation = Federation(nets(), X, Y, task="binary")
    assert repr(federation) == "<Federation of 2 devices, task binary, 270 training records, not fitted>"
    assert federation.epsilon_spent == 0
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    federation.fit(
        PLAIN | {"train.eval_every": 1},
        progress=lambda snapshot: seen.append((snapshot.t, snapshot.epsilon_spent, federation.epsilon_spent)),
    )
    assert torch.get_num_threads() == 2  # those of the caller, though the run took one
    torch.set_num_threads(before)
    rounds = [(t, spent) for t, spent, told in seen if told == spent and t]
    assert [t for t, _ in rounds][:4] == [1, 2, 3, 4]
    spent = [epsilon for _, epsilon in rounds]
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[3] <= federation.epsilon_spent <= federation.summary()["epsilon"]
    assert capsys.readouterr().err == ""
    assert repr(federation).endswith(f"fitted in 4 rounds, epsilon {federation.summary()['epsilon']}, guarantee no>")
    Federation(nets(), X, Y, task="binary").fit(PLAIN, progress=True)
    assert "round 4/4" in capsys.readouterr().err
    assert {"Federation", "__version__"} <= set(dir(dpzv))
    assert {"epsilon_spent", "fit", "load", "predict_proba", "save"} <= set(dir(federation))


def test_a_fit_that_was_interrupted_says_what_it_spent() -> None:
    def stop(snapshot: Snapshot) -> None:
        if snapshot.t == 1:
            raise KeyboardInterrupt

    federation = Federation(nets(), X, Y, task="binary")
    with pytest.raises(KeyboardInterrupt):
        federation.fit(PLAIN | {"train.eval_every": 1}, progress=stop)
    assert 0 < federation.epsilon_spent < 1
    assert "begun, epsilon about 0." in repr(federation)
    with pytest.raises(ConfigError, match="fitted once"):
        federation.fit(QUICK)


def test_predictions_are_those_of_the_trained_networks_and_the_refitted_head() -> None:
    """The reported test metric is found again from `predict` on the held-out records."""
    xs, D = columns(600), 600
    y = labels("binary", xs)
    federation = Federation(nets(), xs, y, task="binary").fit(QUICK)
    held_out = [i for i in range(D) if i not in set(_rows_of(federation, xs))]
    assert len(held_out) == 60
    scores = federation.predict([x[held_out] for x in xs])
    assert roc_auc_score(y[held_out], scores) == pytest.approx(federation.summary()["test_auc"], abs=1e-12)


def _rows_of(federation: Federation, xs: list[np.ndarray]) -> list[int]:
    """Which records are trained on, found by their first feature."""
    place = {value: i for i, value in enumerate(xs[0][:, 0].astype(np.float32))}
    return [place[value] for value in federation._data.x_train[0][:, 0]]


@pytest.mark.parametrize("start", [3, 13, 23])
def test_training_beats_untrained_devices_on_an_easy_problem(start: int) -> None:
    """One number a device must carry a direction in 16 columns: a random one hardly does, a trained one does.

    On 300 held-out records an AUC of 0.75 has a standard deviation below 0.03, so a gain of 0.1 is no chance.
    """
    rng = numpy_generator("easy")
    xs = [rng.normal(size=(3000, 16)).astype(np.float32) for _ in range(2)]
    y = (xs[0][:, 0] + xs[0][:, 1] + xs[1][:, 0] + xs[1][:, 1] > 0).astype(int)
    settings = {
        "train.B": 256,
        "train.eta_m": 0.02,
        "train.momentum": 0.9,
        "head.rule": "frozen",
        "head.hidden": 32,
        "head.refit_steps": 60,
        "privacy.epsilon": math.inf,
        "privacy.C": math.inf,
        "runtime.threads": 1,
    }
    untrained, trained = (
        Federation([seeded(nn.Linear(16, 1), start + m) for m in range(2)], xs, y, task="binary")
        .fit(settings | {"train.rounds": rounds})
        .summary()["test_auc"]
        for rounds in (0, 600)
    )
    assert trained > untrained + 0.1
    assert trained > 0.9


def test_the_same_seed_gives_the_same_predictions_and_global_randomness_is_left_alone() -> None:
    xs, networks = columns(), nets()
    federations = [Federation(copy.deepcopy(networks), xs, labels("binary", xs), task="binary") for _ in range(2)]
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (federation.fit(QUICK).predict(xs) for federation in federations)
    assert np.array_equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_bytes_stay_bytes() -> None:
    """A network may look up rows by byte; in `predict`, other types would lose what they mean."""
    pixels = (numpy_generator("bytes").random((300, 4)) * 4).astype(np.uint8)

    class LookUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(256, 2)

        def forward(self, x: Tensor) -> Tensor:
            assert x.dtype == torch.uint8
            embeddings: Tensor = self.rows(x.long()).flatten(1)
            return embeddings

    federation = Federation([seeded(LookUp())], [pixels], pixels[:, 0] > 1, task="binary").fit(QUICK)
    assert federation.predict([pixels[:7]]).shape == (7,)
    with pytest.raises(ConfigError, match="features of device 1 must be numbers that fit uint8"):
        federation.predict([pixels[:7] / 255])


def test_frozen_and_tied_weights_of_any_module() -> None:
    """Frozen ones stay bit-identical, tied ones stay tied."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            embeddings: Tensor = self.second(self.first(self.frozen(x)).tanh())
            return embeddings

    network, (x, _) = seeded(Tied()), columns()
    assert isinstance(network, Tied)
    frozen, first = network.frozen.weight.clone(), network.first.weight.clone()
    Federation([network], [x], x[:, 0] > 0, task="binary").fit(QUICK)
    assert torch.equal(network.frozen.weight, frozen)
    assert not torch.equal(network.first.weight, first)
    assert network.second.weight is network.first.weight


def test_batch_normalisation_works_by_its_running_statistics() -> None:
    """Given in training mode, it is put in evaluation mode: nothing of a batch enters, nothing is updated."""
    xs, norm = columns(), nn.BatchNorm1d(4)
    norm.running_mean = torch.full((4,), 0.5)
    network = nn.Sequential(norm, seeded(nn.Linear(4, 2))).train()
    federation = Federation([network, nets()[1]], xs, labels("binary", xs), task="binary").fit(QUICK)
    assert not network.training
    assert torch.equal(norm.running_mean, torch.full((4,), 0.5))
    alone = np.concatenate([federation.predict([x[i : i + 1] for x in xs]) for i in range(5)])
    assert np.allclose(alone, federation.predict([x[:5] for x in xs]), atol=1e-6)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)), "the batch's own statistics"),
        (CentredBatch(4, 2), "of a batch changes the embeddings of other records"),
        (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 2)), "embeddings"),
        (nn.Identity(), "must have trainable parameters"),
    ],
    ids=["batch statistics", "batch mean", "three dimensions", "nothing to train"],
)
def test_networks_that_cannot_take_part_are_refused_with_the_reason(network: nn.Module, reason: str) -> None:
    xs = columns()
    federation = Federation([network, nets()[1]], xs, labels("binary", xs), task="binary")
    with pytest.raises(ConfigError, match=reason):
        federation.fit(QUICK)
    with pytest.raises(ConfigError, match="not fitted; call fit first"):
        federation.predict(xs)


def _with_nan(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[7, 1] = np.nan
    return x


X, Y = columns(), labels("binary", columns())
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "fewer networks": ({"networks": nets()[:1]}, "got 1 networks and 2 feature arrays"),
    "shared weights": ({"networks": [nets()[0]] * 2}, "a tensor that devices 1 and 2 share"),
    "unequal lengths": ({"features": [X[0], X[1][:299]]}, "300 labels and 300 rows at device 1, 299 rows at device 2"),
    "fewer labels": ({"labels": Y[:200]}, "200 labels and 300 rows at device 1"),
    "not a number": ({"features": [X[0], _with_nan(X[1])]}, "1 NaN or infinite values in column 1"),
    "ragged": ({"features": [[[1, 2], [3]] * 150, X[1]]}, "numbers in a rectangular array"),
    "flat": ({"features": [X[0][:, 0], X[1]]}, r"shape \[records, columns\], got \[300\]"),
    "shuffled frame": ({"features": [pd.DataFrame(X[0]), pd.DataFrame(X[1])[::-1]]}, "same index in the same order"),
    "shuffled labels": ({"features": [pd.DataFrame(X[0]), X[1]], "labels": pd.Series(Y)[::-1]}, "join them first"),
    "text labels": ({"labels": ["yes", "no"] * 150}, "number the classes from 0"),
    "one label": ({"labels": 1}, "one value a record"),
    "one class": ({"labels": np.ones(300)}, "at least two classes, got 300 labels that are all 1"),
    "class out of range": ({"labels": Y + 1}, "between 0 and 1"),
    "classes not counted": ({"task": "classes"}, "at least 2 for 'classes', got 0; set n_classes"),
    "unknown task": ({"task": "ranking"}, "task 'ranking' is not known"),
    "too few to hold out": ({"features": [x[:9] for x in X], "labels": [0, 1, 0] * 3}, "at least 10 records"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_a_federation_is_refused_in_a_sentence(name: str) -> None:
    changed, sentence = BAD[name]
    given: dict[str, Any] = {"networks": nets(), "features": X, "labels": Y, "task": "binary"} | changed
    with pytest.raises(ConfigError, match=sentence):
        Federation(**given)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train.round": 4}, "'train.round' is not known; did you mean 'train.rounds'"),
        ({"rounds": 4}, "'rounds' is not known"),
        ({"train.B": 271}, "at most the number of records 270, got 271"),
        ({"privacy.epsilon": 0}, "privacy.epsilon must be above 0"),
        ({"data.name": "digits"}, "as given, got the key 'data.name'"),
        ({"runtime.kind": "network"}, 'must be "simulate" or "fused" here, got "network"'),
        ({"devices.start": "dp-pca"}, "as given, got the key 'devices.start'"),
        ({"devices.latencies": 1}, "did you mean 'devices.latency'"),
        ({"train.lam": [1e-3] * 3}, "3 values for 2 devices"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_are_refused_and_the_federation_can_still_be_fitted(
    settings: dict[str, Any], sentence: str
) -> None:
    federation = Federation(nets(), X, Y, task="binary")
    with pytest.raises(ConfigError, match=sentence):
        federation.fit(QUICK | settings)
    assert federation.fit(QUICK | {"devices.latency": [0.0, 0.5]}).summary()["rounds"] == 4


def test_unfitted_has_nothing_to_say_and_a_second_fit_is_refused() -> None:
    federation = Federation(nets(), X, Y, task="binary")
    for ask in (lambda: federation.predict(X), federation.summary):
        with pytest.raises(ConfigError, match="not fitted; call fit first"):
            ask()
    federation.fit(QUICK)
    with pytest.raises(ConfigError, match="fitted once, since the budgets of two runs over the same records add up"):
        federation.fit(QUICK)


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ([X[0]], "each of the 2 devices, got 1"),
        ([X[0], X[1][:5]], r"the same records at every device, got \[300, 5\] rows"),
        ([X[0], X[0]], r"device 2 must have shape \[records, 3\], got \[300, 4\]"),
        ([X[0][0], X[1][0]], r"device 1 must have shape \[records, 4\], got \[4\]"),
        ([X[0], _with_nan(X[1])], "device 2 must be finite"),
        ([X[0], X[1] * 1e300], "device 2 must be finite"),
        ([X[0], X[1].astype(str)], "device 2 must be numbers"),
        ([pd.DataFrame(X[0]), pd.DataFrame(X[1])[::-1]], "same index in the same order"),
    ],
    ids=["too few", "lengths", "columns", "flat", "nan", "too large", "text", "shuffled"],
)
def test_features_that_do_not_fit_the_training_are_refused(
    fitted: Federation, features: list[np.ndarray], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fitted.predict(features)


@pytest.fixture(scope="module")
def fitted() -> Federation:
    """A federation that was trained."""
    return Federation(nets(), X, Y, task="binary").fit(QUICK)


def test_no_new_records_have_no_predictions_and_lists_are_arrays_too(fitted: Federation) -> None:
    assert fitted.predict([np.empty((0, 4)), np.empty((0, 3))]).shape == (0,)
    assert np.array_equal(fitted.predict([x.tolist() for x in X]), fitted.predict(X))
    assert np.array_equal(fitted.predict([pd.DataFrame(x) for x in X]), fitted.predict(X))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA accelerator")
def test_a_federation_trained_on_an_accelerator_predicts_from_arrays() -> None:
    federation = Federation(nets(), X, Y, task="binary").fit(QUICK | {"runtime.accelerator": "cuda"})
    assert federation.predict(X).shape == (300,)
