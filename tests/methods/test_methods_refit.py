"""The final head: which model is chosen on records that it was not fitted to, and how it is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpzv.durable import write_tensors
from dpzv.methods import refit as module
from dpzv.methods.refit import Refit, refit
from dpzv.models.final_head import FinalHead, TreeHead, load_head
from dpzv.models.losses import per_record_loss
from dpzv.rng import torch_generator
from dpzv.terms import Task

BINARY, CLASSES = per_record_loss("binary"), per_record_loss("classes")


def how(task: Task = "binary", outputs: int = 1, *, steps: int = 90, balanced: bool = False) -> Refit:
    """With 90 steps there are networks and no trees, which take longer."""
    return Refit(task=task, outputs=outputs, hidden=16, seed=3, steps=steps, balanced=balanced)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_generator("refit rows", *shape))


def test_units_and_zero_points_of_columns_do_not_matter() -> None:
    rows = drawn(400, 3)
    y = (rows[:, 0] * rows[:, 1] > 0).float()
    units, zero = torch.tensor([1e-4, 1.0, 512.0]), torch.tensor([1e-2, 0.0, -7000.0])
    here, chosen = refit(rows, y, how())
    there, again = refit(rows * units + zero, y, how())
    assert again.name == chosen.name
    torch.testing.assert_close(there(rows * units + zero), here(rows), rtol=0.05, atol=0.05)


def test_each_kind_of_model_is_chosen_where_it_fits() -> None:
    """A sum is linear; a fold across many columns needs a hidden layer; steps along single columns need trees."""
    rows = drawn(1500, 2)
    _, chosen = refit(rows[:300], rows[:300].sum(dim=1), how("regression", steps=100))
    assert list(chosen.losses) == ["linear", "one hidden layer of 16", "boosted trees"]
    assert (chosen.name, chosen.setting) == ("linear", "penalty 0.3")
    assert (chosen.records, chosen.folds) == (300, 5)
    _, chosen = refit(rows, rows.sum(dim=1), how("regression", steps=5))
    assert list(chosen.losses) == ["linear", "one hidden layer of 16", "two hidden layers of 64"]  # too few for trees
    wide = drawn(1500, 30)
    head, chosen = refit(wide, wide[:, :10].sum(dim=1).abs(), how("regression", steps=400))
    assert chosen.losses["linear"] > 0.9
    assert chosen.name in ("one hidden layer of 16", "two hidden layers of 256")
    assert isinstance(head, FinalHead)
    assert len(head.layers) > 1
    steps = ((wide[:, 0] > 0) ^ (wide[:, 1] > 0.5)).float()
    head, chosen = refit(wide, steps, how(steps=300))
    assert chosen.name == "boosted trees"
    assert chosen.setting == "60 trees an output"
    assert isinstance(head, TreeHead)
    assert float(((head(wide).squeeze(1) > 0) == (steps > 0.5)).float().mean()) > 0.95


def test_few_records_get_the_simple_model_unless_another_is_clearly_better() -> None:
    """On the last records the second is better by chance alone: 0.01 with a standard error of 0.02."""
    noise = torch.cat([torch.full((200,), 0.4), torch.full((200,), -0.4)]).double()
    simple, other = torch.full((400,), 0.6).double(), 0.59 + noise
    assert module._simplest({"linear": simple, "network": other}) == "linear"
    assert module._simplest({"linear": simple, "network": other - 0.05}) == "network"
    assert module._simplest({"linear": simple, "network": 0 * simple}) == "network"
    assert module._simplest({"linear": simple * torch.inf, "network": other}) == "network"


def test_many_records_are_judged_on_one_part_at_full_size() -> None:
    rows = drawn(6000, 4)
    y = (rows[:, 0] * rows[:, 1] + 0.3 * rows[:, 2] > 0).float()
    _, chosen = refit(rows, y, how())
    assert (chosen.records, chosen.folds) == (1200, 1)
    assert chosen.losses["linear"] > 0.6 > chosen.losses[chosen.name]


def test_records_held_out_for_the_choice_are_not_fitted_in_it_but_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels are coins: a model that had seen them would know them better than chance, and the final one does."""
    monkeypatch.setattr(module, "PENALTIES", (1e-3,) * 4)
    monkeypatch.setattr(module, "_simplest", lambda losses: "linear")
    rows = drawn(300, 100)
    y = (drawn(300, 2)[:, 0] > 0).float()
    head, chosen = refit(rows, y, how())
    assert min(chosen.losses.values()) > 0.6
    assert float(BINARY(head(rows), y).mean().detach()) < 0.5


def test_without_a_choice_it_is_the_network_fitted_to_all_records() -> None:
    rows = drawn(400, 3)
    y = (rows[:, 0].abs() > 0.7).float()
    head, chosen = refit(rows, y, Refit(task="binary", outputs=1, hidden=64, seed=0, choose=False))
    assert (chosen.name, chosen.records, chosen.losses) == ("one hidden layer of 64", 0, {})
    assert float(((head(rows)[:, 0] > 0) == y).float().mean()) > 0.9


def test_a_number_is_learnt_in_its_own_units() -> None:
    rows = drawn(500, 3)
    y = 2e5 + 3e3 * (rows[:, 0] - rows[:, 2])
    head, _ = refit(rows, y, how("regression"))
    assert float((head(rows).squeeze(1) - y).detach().std() / y.std()) < 0.01
    stairs = 2e5 + 3e3 * (rows[:, 0] > 0.3).float() * (rows[:, 1] > 0).float()
    head, chosen = refit(rows, stairs, how("regression", steps=300))
    assert chosen.name == "boosted trees"
    assert float((head(rows).squeeze(1) - stairs).std() / stairs.std()) < 0.1
    same = torch.full((40,), 7.0)  # a number that never varies is predicted as it is
    head, _ = refit(rows[:40], same, how("regression", steps=5))
    torch.testing.assert_close(head(rows).squeeze(1), torch.full((500,), 7.0))


def test_a_head_that_diverged_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = module.linear_heads

    def broken(*given: object) -> list[FinalHead]:
        heads = honest(*given)  # type: ignore[arg-type]
        for head in heads:
            head.mean.fill_(torch.nan)
        return heads

    monkeypatch.setattr(module, "linear_heads", broken)
    _, chosen = refit(drawn(100, 2), (torch.arange(100) % 2).float(), how(steps=2))
    assert chosen.losses["linear"] == float("inf")
    assert chosen.name != "linear"


@pytest.mark.parametrize("D", [2, 29, 30])
def test_few_records_are_not_held_out(D: int) -> None:
    head, chosen = refit(drawn(D, 3), torch.arange(D) % 3, how("classes", 3, steps=4))
    assert (chosen.records, bool(chosen.losses)) == ((30, True) if D == 30 else (0, False))
    assert head(drawn(5, 3)).shape == (5, 3)


def test_a_balanced_head_finds_the_rare_class() -> None:
    """One record in twenty is of class 1, and both overlap: without weights hardly any is called so."""
    rows = drawn(2000, 2)
    y = (torch.arange(2000) % 20 == 0).float()
    rows[:, 0] += 1.5 * y
    called = {}
    for balanced in (False, True):
        head, _ = refit(rows, y, how(steps=4, balanced=balanced))
        called[balanced] = float((head(rows[y > 0.5]) > 0).float().mean())
    assert called[False] < 0.3 < 0.6 < called[True]


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("classes", 2), ("classes", 4), ("regression", 1)])
def test_the_stored_head_is_the_head(task: Task, outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn(300, 5) * 30 + 4
    y = 1e3 * rows[:, 0] if task == "regression" else torch.arange(300) % max(outputs, 2)
    y = y.float() if task == "binary" else y
    for name in ("linear", "one hidden layer of 16", "boosted trees"):
        monkeypatch.setattr(module, "_simplest", lambda losses, name=name: name)
        head, chosen = refit(rows, y, how(task, outputs, steps=100))
        assert chosen.name == name
        write_tensors(tmp_path / "final.safetensors", head.state_dict(), {})
        stored = load_head(tmp_path)
        assert torch.equal(stored(rows), head(rows))
        assert stored(rows).shape == (300, outputs)
        assert stored(rows).dtype == torch.float32
        assert stored(rows[:0]).shape == (0, outputs)
        assert np.isfinite(stored(rows).detach().numpy()).all()
