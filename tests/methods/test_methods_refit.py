"""The final head: standardised columns, a network chosen on held-out training records, and how it is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpzv.durable import write_tensors
from dpzv.methods import refit as module
from dpzv.methods.refit import Refit, refit
from dpzv.models.final_head import FinalHead, load_head
from dpzv.models.losses import per_record_loss
from dpzv.rng import torch_generator

BINARY, CLASSES, NUMBER = (per_record_loss(task) for task in ("binary", "classes", "regression"))


def how(outputs: int = 1, *, steps: int = 100, number: bool = False) -> Refit:
    return Refit(outputs=outputs, hidden=16, seed=3, number=number, steps=steps)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_generator("refit rows", *shape))


def test_columns_have_mean_0_and_deviation_1_over_the_rows_that_take_part() -> None:
    rows = drawn(500, 4) * torch.tensor([1e-3, 1.0, 1e3, 1.0]) + torch.tensor([5.0, 0.0, 1e4, 0.0])
    rows[:, 3] = 0.1  # its sum is not exactly 500 times as much
    ids = torch.arange(0, 500, 3)
    mean, scale = module._standardisation(rows, ids)
    taken = rows[ids].double().numpy()
    np.testing.assert_allclose(mean, taken.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(1 / scale[:3], taken[:, :3].std(axis=0), rtol=1e-6)
    assert scale[3] == 0


def test_units_and_zero_points_of_columns_do_not_matter() -> None:
    rows = drawn(400, 3)
    y = (rows[:, 0] * rows[:, 1] > 0).float()
    units, zero = torch.tensor([1e-4, 1.0, 512.0]), torch.tensor([1e-2, 0.0, -7000.0])
    here, chosen = refit(rows, y, BINARY, how())
    there, again = refit(rows * units + zero, y, BINARY, how())
    assert again.name == chosen.name
    torch.testing.assert_close(there(rows * units + zero), here(rows), rtol=0.05, atol=0.05)


def test_the_network_with_the_least_loss_on_the_held_out_records_is_taken() -> None:
    """A sum of columns is exactly linear, as the other networks are not; no line parts four squares of two colours."""
    rows = drawn(1500, 2)
    _, chosen = refit(rows[:300], rows[:300].sum(dim=1), NUMBER, how(number=True, steps=300))
    assert list(chosen.losses) == ["linear", "one hidden layer of 16", "two hidden layers of 256"]
    assert chosen.records == 30
    assert chosen.name == "linear"
    squares = (rows[:, 0] * rows[:, 1] > 0).float()
    head, chosen = refit(rows, squares, BINARY, how())
    assert chosen.losses["linear"] > 0.6 > chosen.losses["two hidden layers of 256"]
    assert chosen.name == min(chosen.losses, key=lambda name: chosen.losses[name])
    assert len(head.layers) > 1


def test_records_held_out_for_the_choice_are_not_fitted_in_it_but_in_the_end() -> None:
    """Labels are coins: a network that had seen them would know them better than chance, and the final one does."""
    rows = drawn(300, 100)
    y = (drawn(300, 2)[:, 0] > 0).float()
    head, chosen = refit(rows, y, BINARY, how(steps=300))
    assert min(chosen.losses.values()) > 0.6
    assert float(BINARY(head(rows), y).mean().detach()) < 0.5
    held = torch.randperm(300, generator=torch_generator(3, "refit", "choice"))[:30]
    assert float(BINARY(head(rows[held]), y[held]).mean().detach()) < 0.5


def test_a_number_is_learnt_in_its_own_units() -> None:
    rows = drawn(500, 3)
    y = 2e5 + 3e3 * (rows[:, 0] - rows[:, 2])
    head, _ = refit(rows, y, NUMBER, how(number=True))
    assert float((head(rows).squeeze(1) - y).detach().std() / y.std()) < 0.1
    same = torch.full((40,), 7.0)  # a number that never varies is predicted as it is
    head, _ = refit(rows[:40], same, NUMBER, how(number=True, steps=5))
    torch.testing.assert_close(head(rows).squeeze(1), torch.full((500,), 7.0))


def test_a_head_that_diverged_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = module._fitted

    def broken(one: module.Candidate, *rest: object) -> FinalHead:
        head = honest(one, *rest)  # type: ignore[arg-type]
        if one.name == "linear":
            head.mean.fill_(torch.nan)
        return head

    monkeypatch.setattr(module, "_fitted", broken)
    _, chosen = refit(drawn(100, 2), torch.arange(100) % 2, BINARY, how(steps=2))
    assert chosen.losses["linear"] == float("inf")
    assert chosen.name != "linear"


@pytest.mark.parametrize("D", [2, 29, 30])
def test_few_records_are_not_held_out(D: int) -> None:
    head, chosen = refit(drawn(D, 3), torch.arange(D) % 3, CLASSES, how(3, steps=4))
    assert (chosen.records, bool(chosen.losses)) == ((3, True) if D == 30 else (0, False))
    assert head(drawn(5, 3)).shape == (5, 3)


def test_the_stored_head_is_the_head(tmp_path: Path) -> None:
    rows = drawn(200, 5) * 30 + 4
    for y, loss, made in (
        (torch.arange(200) % 4, CLASSES, how(4, steps=30)),
        (1e3 * rows[:, 0], NUMBER, how(steps=30, number=True)),
    ):
        head, _ = refit(rows, y, loss, made)
        write_tensors(tmp_path / "final.safetensors", head.state_dict(), {})
        assert torch.equal(load_head(tmp_path)(rows), head(rows))


def test_adam_is_that_of_torch() -> None:
    rows, y = drawn(64, 6), (torch.arange(64) % 2).float()
    ours, theirs = (FinalHead.seeded((6, 8, 1), torch_generator("twins")) for _ in range(2))
    adam, oracle = module._Adam(ours, 1e-2), torch.optim.Adam(theirs.parameters(), weight_decay=1e-2)
    for t in range(20):
        for head in (ours, theirs):
            BINARY(head(rows), y).mean().backward()  # type: ignore[no-untyped-call]
        oracle.param_groups[0]["lr"] = eta = 0.01 / (1 + t)
        adam.step(eta)
        oracle.step()
        oracle.zero_grad()
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


@pytest.mark.parametrize("n", [1, 3, 5, 100, 101])
def test_a_pass_has_no_record_twice(n: int) -> None:
    ids = torch.arange(0, 2 * n, 2)
    batches = list(module._batches(ids, 0, 50))
    size, each = len(batches[0]), n // len(batches[0])
    assert len(batches) == 50
    assert {len(batch) for batch in batches} == {size}
    for start in range(0, 50 - each + 1, each):
        seen = torch.cat(batches[start : start + each])
        assert len(seen.unique()) == len(seen)
        assert bool((seen % 2 == 0).all())
    assert n < 10 or not torch.equal(batches[0], batches[each])
