"""Attacks on features: each finds a planted leak, and nothing about features that belong to other records."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from attacked_runs import WIDTH, D, coalition, data, trained, truth

from dpzv.attacks.feature_inference import (
    explains,
    from_predictions,
    from_training,
    generated,
    regressed,
    sent_to_server,
)
from dpzv.attacks.findings import AttackRow, RunFacts, Tried, area, rows_of
from dpzv.attacks.label_attacks import Insight, label_attacks

FACTS = RunFacts("m", None, None, "downlink", 0, "arrays")


def row(tries: list[Tried]) -> AttackRow:
    return rows_of([("a", "features", tries)], FACTS, [float("inf")])[0]


def features(evidence: Insight | None, shuffled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The column of device 2 that decides the label, in the order of the scored records or in another one."""
    records = data("other")
    x, x_test = (torch.from_numpy(one[1][:, :1]) for one in (records.x_train, records.x_test))
    if evidence is not None:
        x, x_test = x[evidence.sample.train], x_test[evidence.sample.test]
    if shuffled:
        return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(3))], x_test
    return x, x_test


MANY = {"vafl": (), "dpzv": (("train", "directions", 32),), "vfl-czofo": (("train", "q", 32),)}
"""Settings under which a batch's labels, and so a feature that decides them, follow from what comes back."""


@pytest.mark.parametrize("name", ["regression", "generative"])
@pytest.mark.parametrize("method", MANY)
def test_what_comes_back_tells_another_devices_features(method: str, name: str) -> None:
    """The label is a feature of device 2; it comes back to device 1, whose own features say nothing about it."""
    folder = trained(method, float("inf"), *MANY[method], kind="other")
    _, evidence = label_attacks(coalition(folder, 1), truth("other"), 0.0)
    found = row(dict(from_training(evidence, *features(evidence, False)))[name])
    assert found.leaks
    assert found.score > 0.7
    assert not row(dict(from_training(evidence, *features(evidence, True)))[name]).leaks


@pytest.mark.parametrize("method", ["dpzv", "zoo-vfl"])
def test_one_mean_over_a_batch_tells_no_feature(method: str) -> None:
    """A number for 32 records: these attacks find no feature by it, with zoo-vfl as with dpzv in one direction."""
    _, evidence = label_attacks(coalition(trained(method, kind="other"), 1), truth("other"), 0.0)
    for tries in dict(from_training(evidence, *features(evidence, False))).values():
        assert not row(tries).leaks


def test_predictions_tell_another_devices_features() -> None:
    own = data("other").x_train[0]
    x, _ = features(None, False)
    outputs = 3 * x.numpy() + 0.1
    assert row(from_predictions(own, outputs, x)).leaks
    assert not row(from_predictions(own, outputs, features(None, True)[0])).leaks


@pytest.mark.parametrize("model", [regressed, generated])
def test_the_models_find_a_straight_line(model: object) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 3)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0], [0.0]]) + 0.1 * generator.normal(size=(400, 1))).astype(np.float32)
    guess = model(x[:200], y[:200], x[200:])  # type: ignore[operator]
    assert area(guess, (y[200:] > 0).astype(np.int64)).value > 0.97


def test_the_server_rebuilds_a_linear_devices_features_from_enough_uploads() -> None:
    """One number and K = 32 slopes a upload: the first upload settles 32 columns, the first fill only one number."""
    folder = trained("dpzv", float("inf"), ("train", "directions", 32))
    (member,) = coalition(folder, 1).members
    found = {uploads: area(one.guess, one.y).value for uploads, one in sent_to_server(member)}
    assert found[1] > 0.999
    assert 0.5 < found[0] < 0.75


def test_the_server_rebuilds_less_of_a_device_with_few_uploads() -> None:
    """Two numbers an upload for 32 columns: not enough."""
    (member,) = coalition(trained("dpzv"), 1).members
    found = {uploads: area(one.guess, one.y).value for uploads, one in sent_to_server(member)}
    assert WIDTH == 32
    assert len(member.view.x_train) == D
    assert found[0] < found[1] < 0.9


def test_pixels_are_no_straight_line_even_where_the_first_records_are_black() -> None:
    """A convolutional network maps black records to one and the same row, whatever they are multiplied with."""
    folder = trained("dpzv", float("inf"), ("devices", "model", "cnn"), kind="images")
    (member,) = coalition(folder, 1).members
    assert member.view.x_train.dtype == torch.uint8
    assert member.view.x_train[:8].max() == 0
    found = list(sent_to_server(member))
    assert [uploads for uploads, _ in found] == [0, 1]
    assert all(np.isfinite(one.guess).all() for _, one in found)


def test_more_uploads_of_a_network_with_layers_tell_the_server_more() -> None:
    layers = ("devices", "model", "mlp"), ("devices", "hidden", 4), ("train", "eta_m", 0.1)
    (member,) = coalition(trained("dpzv", float("inf"), *layers, ("train", "B", D), ("train", "rounds", 32)), 1).members
    found = [area(one.guess, one.y) for _, one in sent_to_server(member)]
    assert len(found) == 6
    assert all(later.value > earlier.value - earlier.error for earlier, later in pairwise(found))
    assert found[-1].value > found[0].value + 0.05


def test_uploads_that_say_nothing_are_left_out() -> None:
    """With 64 known records a hundred columns of noise teach a regression what is not so; telling ones are welcome."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(256, 6)).astype(np.float32)
    told = x[:, :3] + 0.3 * generator.normal(size=(256, 3)).astype(np.float32)
    noise = generator.normal(size=(256, 100)).astype(np.float32)
    few, noisy, more = told, np.concatenate([told, noise], axis=1), np.concatenate([told, x[:, 3:]], axis=1)
    assert explains(more, x) > explains(few, x) > explains(noisy, x)


def test_a_column_that_is_nearly_always_the_same_is_not_guessed() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    x[:, 1] = 0.0
    x[:2, 1] = 100.0  # varies most, and is above its median for two records
    guessed = from_predictions(x[:, :1], x[:, 2:], torch.from_numpy(x))
    assert all(one.y.shape[1] == 2 for one in guessed)
