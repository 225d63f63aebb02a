"""The rivals against oracles: joint backpropagation, block-coordinate descent, the true gradient, the formula."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.oracles import whole

from dpzv.data.schedule import BatchSchedule
from dpzv.methods import vafl, vfl_czofo, zoo_vfl
from dpzv.methods.heads import HeadParts, make_head_rule
from dpzv.methods.rules import Question, ServerRule, Uplink, make_device_rule, make_server_rule
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import per_record_loss
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Release
from dpzv.protocol.server import Server
from dpzv.protocol.table import Table
from dpzv.rng import seed_of
from dpzv.zo.directions import layout

D, M, INPUTS, K, CLASSES, LAM = 24, 3, 5, 4, 3, 1e-3
ETA = 0.1
STEPS = Steps(ETA, 0.0, "constant", 100)
OPEN = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))
LOSS = per_record_loss("classes")


def generator(*name: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*name))


def networks() -> list[torch.nn.Module]:
    """M small networks with a bend in them."""
    made = []
    for m in range(M):
        network = torch.nn.Sequential(torch.nn.Linear(INPUTS, 6), torch.nn.Tanh(), torch.nn.Linear(6, K))
        with torch.no_grad():
            for p in network.parameters():
                p.normal_(0, 0.5, generator=generator(1, m))
        made.append(network)
    return made


def features() -> list[torch.Tensor]:
    return [torch.randn(D, INPUTS, generator=generator(2, m)) for m in range(M)]


LABELS = torch.randint(CLASSES, (D,), generator=generator(3))


def head() -> Head:
    return Head(M * K, 7, CLASSES, generator(4))


def server_rule(name: str, w_0: Head, head_rule: str, C: float = math.inf, q: int = 8) -> ServerRule:
    rule = make_head_rule(head_rule, HeadParts(head=w_0, loss=LOSS, steps=STEPS, seed=0, lam=LAM))
    return make_server_rule(name, rule, LOSS, C, q=q, seed=0)


def same(one: torch.nn.Module, other: torch.nn.Module, tolerance: float) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert (a - b).abs().max() <= tolerance


def test_vafl_with_all_devices_on_one_batch_is_one_joint_step() -> None:
    parts, xs, w_0 = networks(), features(), head()
    joint, joint_head = copy.deepcopy(parts), copy.deepcopy(w_0)
    rules = [vafl.VaflDevice(n, m=m + 1, seed=0, lam=LAM, steps=STEPS, uplink=OPEN) for m, n in enumerate(parts)]
    server = server_rule("vafl", w_0, "sgd")
    sent = [rule.embeddings(x, 0)[0] for rule, x in zip(rules, xs, strict=True)]
    answers = []
    for m in range(M):
        rows = torch.cat(sent, dim=1)
        answer = server.answer(Question(1, m + 1, 0, rows, slice(m * K, (m + 1) * K), (sent[m].numpy(),), LABELS, LAM))
        answers.append(answer.totals * answer.grid / answer.divisor)
    server.head_rule.move(1, answers[0], torch.cat(sent, dim=1), LABELS, 0)
    for rule, answer in zip(rules, answers, strict=True):
        rule.update(answer, position=0, t=1)

    output = joint_head(torch.cat([network(x) for network, x in zip(joint, xs, strict=True)], dim=1))
    F.cross_entropy(output, LABELS).backward()
    with torch.no_grad():
        for module in (*joint, joint_head):
            for p in module.parameters():
                p -= ETA * p.grad
    for one, other in zip((*parts, w_0), (*joint, joint_head), strict=True):
        same(one, other, 1e-5)
    assert max(float(p.grad.abs().max()) for p in joint[0].parameters()) > 1e-3  # the step was one


def test_vafl_in_turns_is_block_coordinate_descent_on_stale_blocks() -> None:
    """Through the machines: each block moves by its own gradient, the others as they were last uploaded."""
    B, rounds = 8, 15
    parts, xs, w_0 = networks(), features(), head()
    blocks, block_head = copy.deepcopy(parts), copy.deepcopy(w_0)
    schedules = tuple(BatchSchedule(0, m, B, D) for m in range(1, M + 1))
    table = Table(D, (K,) * M, accelerator="cpu")
    server = Server(server_rule("vafl", w_0, "sgd"), table, LABELS, schedules, (LAM,) * M)
    devices = []
    for m, (network, x) in enumerate(zip(parts, xs, strict=True), 1):
        rule = make_device_rule("vafl", network, m=m, seed=0, lam=LAM, steps=STEPS, uplink=OPEN)
        devices.append(Device(m, rule, x, x, schedules[m - 1]))
        for message in devices[-1].fill():
            server.fill(message)
    for t in range(rounds):
        device = devices[t % M]
        pending = server.ask(device.upload(), None)
        release = Release(pending.t, pending.m, pending.position, pending.totals * pending.grid / pending.divisor)
        server.accept(release)
        device.receive(release)

    stale = [network(x).detach() for network, x in zip(blocks, xs, strict=True)]
    for t in range(rounds):
        m = t % M
        ids = torch.tensor(schedules[m].ids(t // M))
        fresh = blocks[m](xs[m][ids])
        rows = torch.cat([fresh if j == m else h[ids] for j, h in enumerate(stale)], dim=1)
        parameters = [*blocks[m].parameters(), *block_head.parameters()]
        gradients = torch.autograd.grad(F.cross_entropy(block_head(rows), LABELS[ids]), parameters)
        stale[m][ids] = fresh.detach()
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p -= ETA * g
    for one, other in zip((*parts, w_0), (*blocks, block_head), strict=True):
        same(one, other, 1e-5)


def estimate(q: int) -> tuple[torch.Tensor, torch.Tensor]:
    """VFL-CZOFO's estimate of the gradient in h from q differences, as the device rebuilds it; and the true one."""
    h = [network(x).detach() for network, x in zip(networks(), features(), strict=True)]
    w_0, rows, seed = head(), torch.cat(h, dim=1), seed_of(0, "direction", 1, 4)
    asked = Question(1, 1, 4, rows, slice(0, K), (h[0].numpy(),), LABELS, LAM)
    answer = server_rule("vfl-czofo", w_0, "frozen", q=q).answer(asked)
    assert torch.equal(rows, torch.cat(h, dim=1))  # the table keeps h itself
    differences = answer.totals * answer.grid / answer.divisor
    directions = vfl_czofo.directions(seed, q, h[0].shape)
    found = torch.stack([float(d) * v for d, v in zip(differences, directions, strict=True)]).mean(0)
    leaf = h[0].clone().requires_grad_()
    F.cross_entropy(w_0(torch.cat([leaf, *h[1:]], dim=1)), LABELS).backward()
    return found, leaf.grad


def test_czofo_converges_to_the_gradient_as_q_grows() -> None:
    errors = {}
    for q in (50, 800, 12_800):
        found, true = estimate(q)
        errors[q] = float((found - true).norm() / true.norm())
        # the error of q random directions in D*K dimensions
        assert errors[q] == pytest.approx(math.sqrt((D * K + 1) / q), rel=0.3)
    assert errors[12_800] < 0.12


def test_a_czofo_device_backpropagates_the_estimate() -> None:
    network, x = networks()[0], features()[0]
    before = copy.deepcopy(network)
    rule = vfl_czofo.VflCzofoDevice(network, m=1, seed=9, lam=LAM, steps=STEPS, uplink=OPEN)
    rule.embeddings(x, 5)
    differences = np.array([0.3, -1.2, 0.7])
    rule.update(differences, position=5, t=1)
    directions = list(vfl_czofo.directions(seed_of(9, "direction", 1, 5), 3, torch.Size((D, K))))
    g = sum(float(d) * v for d, v in zip(differences, directions, strict=True)) / 3
    gradients = torch.autograd.grad(before(x), list(before.parameters()), g)
    with torch.no_grad():
        for p, gradient in zip(before.parameters(), gradients, strict=True):
            p -= ETA * gradient
    same(network, before, 1e-6)


@pytest.mark.parametrize("C", [math.inf, 1e6], ids=["two losses", "one difference"])
def test_a_zoo_vfl_round_is_its_formula(C: float) -> None:
    """w_m <- w_m - eta * (F(w_m + lam*u) - F(w_m)) / lam * u with F the batch's mean loss."""
    network, x, w_0 = networks()[0], features()[0], head()
    before, others = copy.deepcopy(network), [torch.randn(D, K, generator=generator(5, m)) for m in (1, 2)]
    rule = zoo_vfl.ZooVflDevice(network, m=1, seed=7, lam=0.01, steps=STEPS, uplink=OPEN)
    sent = rule.embeddings(x, 3)
    rows = torch.cat([torch.zeros(D, K), *others], dim=1)
    asked = Question(1, 1, 3, rows, slice(0, K), tuple(one.numpy() for one in sent), LABELS, 0.01)
    answer = server_rule("zoo-vfl", w_0, "frozen", C).answer(asked)
    rule.update(answer.totals * answer.grid / answer.divisor, position=3, t=1)

    u = whole(layout(before), seed_of(7, "direction", 1, 3))
    moved = copy.deepcopy(before)
    with torch.no_grad():
        for p, v in zip(moved.parameters(), u, strict=True):
            p += 0.01 * v
        f, f_plus = (
            float(F.cross_entropy(w_0(torch.cat([module(x), *others], dim=1)).double(), LABELS))
            for module in (before, moved)
        )
        for p, v in zip(before.parameters(), u, strict=True):
            p -= ETA * (f_plus - f) / 0.01 * v
    same(network, before, 2e-4 * abs(f_plus - f) / 0.01 + 1e-6)
    assert abs(f_plus - f) / 0.01 > 0.1  # there was something to move by


@pytest.mark.parametrize(("name", "mean"), [("vafl", False), ("zoo-vfl", True), ("vfl-czofo", True)])
def test_one_record_moves_an_answer_by_at_most_its_clip(name: str, mean: bool) -> None:
    """Replace one label and one row: the integers move by at most 2C in norm; vafl's other records not at all."""
    C, victim, worst = 0.02, 5, 0.0
    sent = [torch.randn(D, K, generator=generator(6, j)) for j in range(2)]
    for seed in range(20):
        totals = []
        for replaced in (False, True):
            rows = torch.randn(D, M * K, generator=generator(7))
            y, h = LABELS.clone(), [s.clone() for s in sent]
            if replaced:
                y[victim] = (y[victim] + 1) % CLASSES
                rows[victim] = 50 * torch.randn(M * K, generator=generator(8, seed))
                h[0][victim] = 100 * torch.randn(K, generator=generator(9, seed))
                h[1][victim] = -h[0][victim]
            rule = server_rule(name, head(), "frozen", C)
            uploads = tuple(one.numpy() for one in h[: rule.arrays])
            answer = rule.answer(Question(1, 1, 0, rows, slice(0, K), uploads, y, LAM))
            assert answer.divisor == (D if mean else 1)
            assert len(answer.totals) == rule.numbers(D, K)
            totals.append(answer.totals)
        moved = (totals[1] - totals[0]).astype(float) * answer.grid
        worst = max(worst, float(np.linalg.norm(moved)))
        if not mean:
            assert not np.delete(moved.reshape(D, K), victim, axis=0).any()
    assert C / 2 < worst <= 2 * C * (1 + 1e-12)


@pytest.mark.parametrize("name", ["vafl", "zoo-vfl", "vfl-czofo"])
def test_a_record_that_may_not_contribute_adds_nothing(name: str) -> None:
    nobody = np.zeros(D, bool)
    h = [torch.randn(D, K, generator=generator(6, j)) for j in range(2)]
    rule = server_rule(name, head(), "frozen", 0.5)
    rows = torch.randn(D, M * K, generator=generator(7))
    sent = tuple(one.numpy() for one in h[: rule.arrays])
    answer = rule.answer(Question(1, 1, 0, rows, slice(0, K), sent, LABELS, LAM, nobody))
    assert not answer.totals.any()


def test_the_uplink_clips_and_adds_noise_of_its_size() -> None:
    noisy = Uplink(2.0, 0.3, lambda shape, stream: np.random.default_rng(len(stream)).standard_normal(shape))
    h = torch.cat([torch.full((500, 64), 5.0), torch.full((500, 64), 1e-3)])
    clipped = noisy.clipped(h)
    assert clipped[:500].norm(dim=1).max() <= 2.0 * (1 + 1e-6)
    assert torch.equal(clipped[500:], h[500:])
    z = (noisy.noised(clipped, "fill", 1, 0) - clipped).flatten().double()
    n = len(z)
    # within 4 standard errors of sigma_h, and not of 0.8 or 1.25 times it
    for factor, expected in ((1.0, True), (0.8, False), (1.25, False)):
        assert (abs(float((z**2).mean()) / (0.3 * factor) ** 2 - 1) < 4 * math.sqrt(2 / n)) is expected


def test_gradients_pass_through_the_clip() -> None:
    bound = Uplink(1.0, 0.0, OPEN.gaussian)
    h = (3 * torch.randn(4, 5, generator=generator(11))).double().requires_grad_()
    assert torch.autograd.gradcheck(bound.clipped, (h,))
