"""K directions a message: what devices and server compute, against plain formulas."""

from __future__ import annotations

import copy
import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.oracles import whole
from tests.runtime.centralised import Centralised

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.errors import ConfigError, PeerError
from dpzv.methods.dpzv import DpzvDevice
from dpzv.methods.heads import HeadParts, make_head_rule
from dpzv.methods.rules import PART, Question, Uplink, make_device_rule, make_server_rule
from dpzv.methods.steps import Directions, Steps
from dpzv.models.head import Head, SumHead, seeded_head
from dpzv.privacy.noise import SeededNoise
from dpzv.privacy.statement import read_ledger
from dpzv.rng import seed_of
from dpzv.runtime.clock import speeds_of
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.grid import layered
from dpzv.runtime.run import resume, run, start
from dpzv.runtime.run_plan import plan_of
from dpzv.zo.directions import layout

OPEN = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))
LAM, B = 1e-3, 40


def config_of(*assignments: str) -> Config:
    tree = recipes.tree("digits")
    for assignment in ("runtime.threads=1", "noise.source=seeded", "head.refit_steps=4", *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


def released(folder: Path) -> list[list[float]]:
    """The numbers of every release in a run's ledger, in order."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
        rows = connection.execute("SELECT Delta FROM releases ORDER BY t").fetchall()
    return [np.frombuffer(row[0], "<f8").tolist() for row in rows]


def test_a_run_is_that_of_a_plain_script(tmp_path: Path) -> None:
    """Without noise and clip; the script sums in another order, so the last digits may differ."""
    free = ("privacy.epsilon=inf", "privacy.C=inf", "head.rule=frozen", "head.final=private", "codec.name=float32")
    K, T = 3, 16
    config = config_of(*free, f"train.directions={K}", f"train.rounds={T}", "train.momentum=0", "train.eta_m=0.01")
    data = catalogue.load("digits")
    networks = make_networks(config, data, plan_of(config, len(data.y_train), 4), SeededNoise(0))
    federated = copy.deepcopy(networks)
    run(config, data, lambda *_: federated, tmp_path / "run", lambda snapshot: True)
    xs, y = [torch.from_numpy(x) for x in data.x_train], torch.from_numpy(data.y_train)
    head = seeded_head(4 * 8, config.head.hidden, 10, config.train.seed)
    expected = Centralised(networks, head, xs, y, T, config.train.B, LAM, 0.01, config.train.seed).train_along(K)
    found = released(tmp_path / "run")
    assert np.shape(found) == (T, K)
    # losses have 24 bits and are divided by lam
    np.testing.assert_allclose(found, expected, atol=2e-4)
    for one, other in zip(networks, federated, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def parts(head: Head | SumHead, momentum: float = 0.0) -> HeadParts:
    steps = Steps(0.5, momentum, "constant", 1)
    return HeadParts(head=head, loss=squared, steps=steps, seed=3, lam=LAM)


def squared(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (output[:, 0] - y) ** 2


def asked(h: tuple[torch.Tensor, ...], y: torch.Tensor, position: int = 0) -> Question:
    rows, sent = torch.empty_like(h[0]), tuple(one.numpy() for one in h)
    return Question(5, 1, position, rows, slice(0, h[0].shape[1]), sent, y, LAM)


def test_the_mean_over_directions_is_the_gradient() -> None:
    """In float64, for a device and a head that both move; the error of the mean falls as the root of d/K."""
    K, generator = 800, torch.Generator().manual_seed(0)
    network, w_0 = torch.nn.Linear(3, 2).double(), torch.nn.Linear(2, 1).double()
    x, y = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((B, 3), (B,)))
    loss = squared(w_0(network(x)), y).mean()
    expected = torch.autograd.grad(loss, [*network.parameters(), *w_0.parameters()])
    steps = Steps(1.0, 0.0, "constant", 1, K)
    device = make_device_rule("dpzv", network, m=1, seed=3, lam=LAM, steps=steps, uplink=OPEN)
    server = make_server_rule("dpzv", make_head_rule("joint-zo", parts(w_0)), squared, math.inf, K=K)
    before = copy.deepcopy([*network.parameters(), *w_0.parameters()])
    answer = server.answer(asked(device.embeddings(x, 2), y))
    Delta = answer.totals * answer.grid / answer.divisor
    assert len(Delta) == K
    device.update(Delta, position=2, t=1)
    server.head_rule.move(5, Delta, x[:0], y[:0], 0)
    moved = [a - b for a, b in zip(before, [*network.parameters(), *w_0.parameters()], strict=True)]
    found = torch.cat([*(m.flatten() for m in moved[:2]), *(2 * m.flatten() for m in moved[2:])])  # eta_0 is a half
    gradient = torch.cat([g.flatten() for g in expected])
    assert (found - gradient).norm() < 0.3 * gradient.norm()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_is_the_written_rule(momentum: float) -> None:
    """v = momentum*v + (1/K) sum_j Delta_j u_j, w -= eta*v, with directions numbered position*K + j."""
    K, network = 4, torch.nn.Linear(5, 2)
    steps = Steps(0.1, momentum, "constant", 1, K)
    device = make_device_rule("dpzv", network, m=2, seed=7, lam=LAM, steps=steps, uplink=OPEN)
    w = [p.detach().clone().double() for p in network.parameters()]
    v = [torch.zeros_like(p) for p in w]
    for position in range(3):
        Delta = np.random.default_rng(position).standard_normal(K)
        device.update(Delta, position=position, t=1)
        us = [whole(layout(network), seed_of(7, "direction", 2, position * K + j)) for j in range(K)]
        for i, p in enumerate(w):
            v[i] = momentum * v[i] + sum(d * u[i].double() for d, u in zip(Delta, us, strict=True)) / K
            p -= 0.1 * v[i]
    for p, q in zip(network.parameters(), w, strict=True):
        torch.testing.assert_close(p.detach().double(), q, atol=1e-5, rtol=1e-5)
    with pytest.raises(PeerError, match="an answer of 4 numbers, got 1"):
        device.update(np.zeros(1), position=3, t=1)


def test_embeddings_are_at_the_shifted_weights_one_after_the_other() -> None:
    K, network, x = 3, torch.nn.Linear(5, 2), torch.randn(B, 5)
    steps = Steps(0.1, 0.0, "constant", 1, K)
    device = make_device_rule("dpzv", network, m=1, seed=7, lam=0.1, steps=steps, uplink=OPEN)
    assert isinstance(device, DpzvDevice)
    h = device.embeddings(x, 4)
    assert len(h) == K + 1
    assert torch.equal(h[0], network(x))
    for j in range(K):
        weight, bias = whole(layout(network), seed_of(7, "direction", 1, 4 * K + j))
        expected = torch.nn.functional.linear(x, network.weight + 0.1 * weight, network.bias + 0.1 * bias)
        torch.testing.assert_close(h[j + 1], expected)


def test_one_record_moves_the_sum_by_at_most_the_euclidean_clip() -> None:
    """Hostile embeddings of one record, the rest the same; the table keeps h."""
    K, C, y = 6, 0.3, torch.zeros(B)
    server = make_server_rule("dpzv", make_head_rule("frozen", parts(SumHead(1))), squared, C, K=K)
    h = [torch.randn(B, 1, generator=torch.Generator().manual_seed(j)) * 1e-2 for j in range(K + 1)]
    seen = []
    for value in (0.0, -3e4, 6e4, 1e-42, math.nan, math.inf):
        changed = [one.clone() for one in h]
        for j, one in enumerate(changed):
            one[7] = value * (1 + j)
        question = asked(tuple(changed), y)
        answer = server.answer(question)
        assert answer.grid == C * math.sqrt(K) / 2**40
        assert torch.equal(question.rows.nan_to_num(), changed[0].nan_to_num())
        seen.append([int(total) for total in answer.totals])
    moved = [sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for one in seen for other in seen]
    assert max(moved) <= (2 * 2**40) ** 2
    assert max(moved) > (0.9 * 2**40) ** 2


@pytest.mark.parametrize("rule", ["frozen", "joint-zo", "sum"])
def test_outputs_along_directions_are_those_of_all_columns(rule: str) -> None:
    """The middle device of three asks; the rule with a joint step sees another w_0 in each evaluation."""
    head = SumHead(2) if rule == "sum" else seeded_head(6, 5, 2, seed=1)
    rows, columns = torch.randn(B, 6), slice(2, 4)
    h = [np.random.default_rng(j).standard_normal((B, 2), np.float32) for j in range(4)]
    rows[:, columns] = torch.from_numpy(h[0])
    made = make_head_rule("joint-zo" if rule == "joint-zo" else "frozen", parts(head))
    before = rows.clone()
    found = list(made.outputs(8, rows, columns, h, 0.1))
    assert torch.equal(rows, before)
    assert len(found) == 4
    for j, output in enumerate(found):
        rows[:, columns] = torch.from_numpy(h[j])
        expected = made.output(8 + j - 1, rows, 0.1 if j else 0.0)
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found[1], found[2], atol=1e-2)


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    config = config_of("train.directions=4", "train.rounds=14", "head.rule=joint-zo", "codec.name=int8")
    assert start(config, tmp_path / "whole", lambda snapshot: True, math.inf) is not None
    stop = iter([True] * 8 + [False] * 9)
    assert start(config, tmp_path / "parts", lambda snapshot: next(stop), math.inf) is None
    assert resume(tmp_path / "parts", lambda snapshot: True, math.inf) is not None
    one, other = ((tmp_path / name / "transcript.jsonl").read_text() for name in ("whole", "parts"))
    assert one.count("\n") == 14
    assert one == other
    assert "sha256:" in json.loads(one.splitlines()[0])["Delta"]
    assert np.shape(released(tmp_path / "parts")) == (14, 4)
    plan = read_ledger(tmp_path / "whole").plan
    assert (plan.directions, plan.clip) == (4, 2 * plan.C)
    told = json.loads((tmp_path / "whole" / "summary.json").read_text())["statement"]
    assert "14 of at most 14 messages of K=4 numbers Delta over B=256 records each, clip C=1 (2 for" in told


@pytest.mark.parametrize("method", ["vafl", "zoo-vfl", "vfl-czofo"])
def test_other_methods_refuse_several_directions(method: str) -> None:
    config_of(f"train.method={method}", "train.rounds=1")
    with pytest.raises(ConfigError, match=f"method {method} has one direction a message, got train.directions=2"):
        config_of(f"train.method={method}", "train.rounds=1", "train.directions=2")
    with pytest.raises(ConfigError, match=r"train\.directions"):
        config_of("train.rounds=1", "train.directions=0")


def test_slopes_of_8_bits_are_for_methods_that_have_slopes() -> None:
    for method in ("dpzv", "zoo-vfl"):
        config_of(f"train.method={method}", "train.rounds=1", "codec.name=int8")
    for method in ("vafl", "vfl-czofo"):
        with pytest.raises(ConfigError, match=f"int8 needs a method that sends slopes of embeddings, got {method}"):
            config_of(f"train.method={method}", "train.rounds=1", "codec.name=int8")


def test_a_comparison_leaves_out_what_a_rival_has_not() -> None:
    tree = configuration.merge(recipes.tree("digits"), {"train": {"directions": 16}, "codec": {"name": "int8"}})
    for method, expected in (("dpzv", (16, "int8")), ("zoo-vfl", (1, "int8")), ("vafl", (1, "float16"))):
        made = configuration.parse(layered(tree, {}, method, [{"train": {"method": method}}]))
        assert (made.train.directions, made.codec.name) == expected


def test_the_clock_charges_one_evaluation_more_than_there_are_directions() -> None:
    seconds = [speeds_of(config_of("train.rounds=1", f"train.directions={K}"), 4)[0].compute for K in (1, 2, 16)]
    assert seconds == pytest.approx([seconds[0], 1.5 * seconds[0], 8.5 * seconds[0]])


def test_the_directions_of_a_batch_are_kept_only_for_a_small_network() -> None:
    """For the step that follows; a large network keeps the last one alone, so that K directions need no more memory."""
    small, large = (Directions(torch.nn.Linear(size, size), 0, "direction", 1, K=4) for size in (8, 520))
    for directions, kept in ((small, True), (large, False)):
        first = [directions(number) for number in range(4)]
        assert [directions(number) is one for number, one in enumerate(first)] == [kept] * 4
        assert directions(4) is directions(4)
        assert directions(0) is not first[0]


@pytest.mark.parametrize("n", [0, 1, PART, 2 * PART + 3])
def test_many_records_are_evaluated_in_parts_and_stay_in_their_order(n: int) -> None:
    network, x, sizes = torch.nn.Linear(5, 2), torch.randn(n, 5), list[int]()
    network.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    steps = Steps(0.1, 0.0, "constant", 1, 1)
    found = make_device_rule("dpzv", network, m=1, seed=7, lam=0.1, steps=steps, uplink=OPEN).evaluate(x)
    assert sum(sizes) == n
    assert max(sizes) <= PART
    torch.testing.assert_close(found, torch.nn.functional.linear(x, network.weight, network.bias))
