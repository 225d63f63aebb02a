"""Fits of the final head against scikit-learn and torch: logistic and ridge regression, Adam, and trees as tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from dpzv.methods import final_fits as module
from dpzv.methods import final_networks, final_trees
from dpzv.methods.final_fits import Sample
from dpzv.models.final_head import FinalHead
from dpzv.models.losses import per_record_loss
from dpzv.rng import torch_generator
from dpzv.terms import Task

BINARY = per_record_loss("binary")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_generator("final fits", *shape))


def part_of(task: Task, outputs: int, n: int = 240, *, weighted: bool = False) -> Sample:
    """Made-up records whose label follows their first columns, with noise."""
    rows = drawn(n, 6) * torch.tensor([1.0, 3.0, 0.1, 1.0, 50.0, 1.0]) + 2
    signal = (rows - rows.mean(dim=0)) / rows.std(dim=0)
    noisy = signal[:, :outputs] + 0.7 * drawn(n, outputs + 3)[:, :outputs]
    y = noisy[:, 0] if task == "regression" else noisy.argmax(dim=1) if outputs > 1 else (noisy[:, 0] > 0).float()
    weight = 0.5 + (torch.arange(n) % 3).float() if weighted else None
    return Sample(rows, y, weight, torch.arange(0, n - 7), task, outputs)


def test_columns_have_mean_0_and_deviation_1_over_the_rows_that_take_part() -> None:
    rows = drawn(500, 4) * torch.tensor([1e-3, 1.0, 1e3, 1.0]) + torch.tensor([5.0, 0.0, 1e4, 0.0])
    rows[:, 3] = 0.1  # its sum is not exactly 500 times as much
    ids = torch.arange(0, 500, 3)
    mean, scale = module.standardisation(rows, ids)
    taken = rows[ids].double().numpy()
    np.testing.assert_allclose(mean, taken.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(1 / scale[:3], taken[:, :3].std(axis=0), rtol=1e-6)
    assert scale[3] == 0


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("classes", 3), ("regression", 1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_heads_are_those_of_scikit_learn(task: Task, outputs: int, weighted: bool) -> None:
    part = part_of(task, outputs, weighted=weighted and task != "regression")
    penalties = (30.0, 1.0)
    for penalty, head in zip(penalties, module.linear_heads(part, penalties), strict=True):
        rows, y = part.rows[part.ids], part.y[part.ids].numpy()
        x = ((rows - head.mean) * head.scale).double().numpy()
        if task == "regression":
            expected = Ridge(penalty).fit(x, y).predict(x)[:, None]
        else:
            weight = None if part.weight is None else part.weight[part.ids].numpy()
            model = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=1000).fit(x, y, weight)
            expected = model.decision_function(x).reshape(len(x), -1)
        found = head(rows).detach().double().numpy()
        if task == "classes":  # what all classes have in common does not matter
            found, expected = (part - part.mean(axis=1, keepdims=True) for part in (found, expected))
        np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("classes", 2), ("classes", 3), ("regression", 1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_trees_predict_what_scikit_learn_predicts(task: Task, outputs: int, weighted: bool) -> None:
    part = part_of(task, outputs, weighted=weighted)
    model = final_trees.boosted(part, 12, seed=0)
    head = final_trees.tree_head(model, part)
    # new records, and records that lie exactly on thresholds
    rows = torch.cat([part.rows, 2 * drawn(5000, 6) + 2, part.rows.round(decimals=1)])
    on = head.threshold[head.threshold != 0].float()
    rows = torch.cat([rows, on[: len(on) // 6 * 6].reshape(-1, 6)])
    for trees in (12, 5):
        staged = list(
            model.staged_predict(rows.double().numpy())
            if task == "regression"
            else model.staged_decision_function(rows.double().numpy())
        )
        expected = np.asarray(staged[trees - 1]).reshape(len(rows), -1)
        found = head.first(trees * (outputs if outputs > 2 else 1))(rows).double().numpy()
        if task == "classes" and outputs == 2:
            found = found[:, 1:] - found[:, :1]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_trees_are_not_tried_where_a_class_is_rare_or_the_table_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of("classes", 3)
    assert final_trees.trees_fit(part)
    rare = part.y.clone()
    rare[rare == 2] = 1
    rare[:5] = 2
    assert not final_trees.trees_fit(Sample(part.rows, rare, None, part.ids, "classes", 3))
    monkeypatch.setattr(final_trees, "CELLS", 6 * 3 * len(part.ids) // 5)
    assert not final_trees.trees_fit(part)


def test_adam_is_that_of_torch() -> None:
    rows, y = drawn(64, 6), (torch.arange(64) % 2).float()
    ours, theirs = (FinalHead.seeded((6, 8, 1), torch_generator("twins")) for _ in range(2))
    part = Sample(rows, y, None, torch.arange(64), "binary", 1)
    fit, oracle = final_networks._Fit(ours, 1e-2), torch.optim.Adam(theirs.parameters(), weight_decay=1e-2)
    for t in range(20):
        BINARY(theirs(rows), y).mean().backward()  # type: ignore[no-untyped-call]
        oracle.param_groups[0]["lr"] = eta = 0.01 / (1 + t)
        with torch.no_grad():
            fit.differentiate(part, part.ids)
            fit.step(eta)
        oracle.step()
        oracle.zero_grad()
    with torch.no_grad():
        torch.testing.assert_close(list(fit.head().parameters()), list(theirs.parameters()))


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("classes", 3), ("regression", 1)])
@pytest.mark.parametrize("hidden", [(8,), (8, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_those_of_autograd(task: Task, outputs: int, hidden: tuple[int, ...], weighted: bool) -> None:
    part = part_of(task, outputs, weighted=weighted and task != "regression")
    head = FinalHead.seeded((6, *hidden, outputs), torch_generator("gradients"))
    head.mean, head.scale = module.standardisation(part.rows, part.ids)
    ids = part.ids[5:90]
    fit = final_networks._Fit(head, 0.0)
    part.loss(head(part.rows[ids]), ids).mean().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        fit.differentiate(part, ids)
    expected = torch.cat([w.grad.flatten() for w in head.parameters() if w.grad is not None])
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(fit.g, expected)


@pytest.mark.parametrize("n", [1, 3, 5, 100, 101])
def test_a_pass_has_no_record_twice(n: int) -> None:
    ids = torch.arange(0, 2 * n, 2)
    batches = list(final_networks._batches(ids, 0, 50))
    size, each = len(batches[0]), n // len(batches[0])
    assert len(batches) == 50
    assert {len(batch) for batch in batches} == {size}
    for start in range(0, 50 - each + 1, each):
        seen = torch.cat(batches[start : start + each])
        assert len(seen.unique()) == len(seen)
        assert bool((seen % 2 == 0).all())
    assert n < 10 or not torch.equal(batches[0], batches[each])
