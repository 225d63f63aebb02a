"""Device and server machines: what they refuse, and the row rule through a whole round."""

from __future__ import annotations

import copy
import math
from typing import Literal

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from dpzv.data.schedule import BatchSchedule
from dpzv.errors import PeerError
from dpzv.methods.heads import HeadParts, make_head_rule
from dpzv.methods.rules import (
    Answer,
    DeviceRule,
    Question,
    ServerRule,
    Uplink,
    make_device_rule,
    make_server_rule,
)
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import per_record_loss
from dpzv.protocol.codec import Codec
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release
from dpzv.protocol.server import Server
from dpzv.protocol.table import Table

D, B, K, LAM = 40, 8, 3, 1e-2
STEPS = Steps(0.1, 0.0, "constant", 100)
OPEN = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(head_rule: str = "frozen", C: float = 0.1) -> tuple[list[Device], Server]:
    """Two devices and a server on random data."""
    schedules = tuple(BatchSchedule(0, m, B, D) for m in (1, 2))
    devices = []
    for m in (1, 2):
        network = torch.nn.Linear(5, K)
        with torch.no_grad():
            for p in network.parameters():
                p.normal_(generator=generator(m))
        rule = make_device_rule("dpzv", network, m=m, seed=0, lam=LAM, steps=STEPS, uplink=OPEN)
        x = torch.randn(D, 5, generator=generator(10 + m))
        devices.append(Device(m, rule, x, x[:4], schedules[m - 1]))
    head = Head(2 * K, 4, 1, generator(3))
    loss = per_record_loss("binary")
    rule_0 = make_head_rule(head_rule, HeadParts(head=head, loss=loss, steps=STEPS, seed=0, lam=LAM))
    y = (torch.rand(D, generator=generator(4)) > 0.5).float()
    server = Server(
        make_server_rule("dpzv", rule_0, loss, C), Table(D, (K, K), accelerator="cpu"), y, schedules, (LAM, LAM)
    )
    for device in devices:
        for message in device.fill():
            server.fill(message)
    return devices, server


def test_the_fill_is_the_embeddings() -> None:
    devices, server = make()
    for device in devices:
        expected = device.method.network(device.x_train)
        assert torch.equal(server.table.h[:, server.table.columns[device.m - 1]], expected)


@pytest.mark.parametrize("head_rule", ["frozen", "joint-zo"])
def test_one_replaced_row_moves_the_sum_by_at_most_its_sensitivity(head_rule: str) -> None:
    """Neighbouring batches: replace one record's rows and label; the exact sum moves by at most 2C."""
    C = 0.05
    worst = 0.0
    for seed in range(30):
        sums = []
        for replaced in (False, True):
            devices, server = make(head_rule, C)
            message = devices[0].upload()
            if replaced:
                victim = int(BatchSchedule(0, 1, B, D).ids(0)[3])
                server.y_train[victim] = 1 - server.y_train[victim]
                server.table.h[victim, K:] = 30 * torch.randn(K, generator=generator(seed))
                h_plus, h_minus = message.h[0].copy(), message.h[1].copy()
                h_plus[3] = 1000 * torch.randn(K, generator=generator(seed + 1)).numpy()
                h_minus[3] = -h_plus[3]
                message = Embeddings(1, 0, (h_plus, h_minus))
            pending = server.ask(message, None)
            sums.append(int(pending.totals[0]) * pending.grid)
        worst = max(worst, abs(sums[1] - sums[0]))
    assert C / 2 < worst <= 2 * C * (1 + 1e-12)


def test_a_row_beyond_the_bound_is_zeros_and_contributes_nothing() -> None:
    for head_rule in ("frozen", "joint-zo"):
        totals = []
        for bad in (float("nan"), float("inf"), 3e38, -65536.0):
            devices, server = make(head_rule)
            message = devices[0].upload()
            h_plus = message.h[0].copy()
            h_plus[2, 1] = bad
            pending = server.ask(replace(message, h=(h_plus, message.h[1])), None)
            totals.append(pending.totals[0])
            server.accept(Release(1, 1, 0, np.array([0.0])))
            row = int(BatchSchedule(0, 1, B, D).ids(0)[2])
            assert torch.equal(server.table.h[row, :K], torch.zeros(K))
        devices, server = make(head_rule)
        keep = np.arange(B) != 2
        assert totals == [server.ask(devices[0].upload(), keep).totals[0]] * 4


def test_the_bound_looks_at_each_row_alone() -> None:
    """A row at the bound stays and one just above it goes, whatever the size of the others."""
    for others in (0.0, 1.0, 65504.0, float("inf")):
        for value, stays in ((65504.0, True), (np.nextafter(np.float32(65504), np.float32(1e9)), False)):
            _, server = make("frozen")
            h = np.full((B, K), others, np.float32)
            h[2] = value
            server.ask(Embeddings(1, 0, (h, h)), None)
            server.accept(Release(1, 1, 0, np.array([0.0])))
            row = int(BatchSchedule(0, 1, B, D).ids(0)[2])
            assert torch.equal(server.table.h[row, :K], torch.full((K,), float(value) if stays else 0.0))
            assert server.zeroed[0] == (not stays) + (B - 1) * (others == float("inf"))


def test_test_rows_and_the_first_fill_keep_the_bound() -> None:
    _, server = make("frozen")
    h = np.ones((2, K), np.float32)
    h[1, 0] = 3e38
    server.fill(Fill(1, 0, h))
    assert server.table.h[:2, :K].tolist() == [[1.0] * K, [0.0] * K]
    assert server.evaluation_rows([Evaluation(1, 0, h)], 2)[:, :K].tolist() == [[1.0] * K, [0.0] * K]
    assert server.zeroed == [1, 0]


@pytest.mark.parametrize(("m", "start", "rows", "width"), [(3, 0, 1, K), (1, -1, 1, K), (1, 1, 2, K), (1, 0, 2, 1)])
def test_test_rows_of_other_records_or_widths_are_refused(m: int, start: int, rows: int, width: int) -> None:
    """One row of another width, or rows that end too late, would be put where they do not belong."""
    _, server = make()
    with pytest.raises(PeerError, match="the link is closed"):
        server.evaluation_rows([Evaluation(m, start, np.ones((rows, width), np.float32))], 2)


def test_records_past_their_cap_contribute_nothing() -> None:
    devices, server = make()
    assert server.ask(devices[0].upload(), np.zeros(B, bool)).totals[0] == 0


def bad_messages(good: Embeddings) -> list[Embeddings]:
    return [
        replace(good, m=0),
        replace(good, m=3),
        replace(good, position=1),
        replace(good, position=-1),
        replace(good, h=(good.h[0][:-1], good.h[1])),
        replace(good, h=(good.h[0], good.h[1][:, :-1])),
        replace(good, h=(good.h[0][:1], good.h[1][:1])),
        replace(good, h=good.h[:1]),
        replace(good, h=(*good.h, good.h[0])),
        replace(good, h=()),
    ]


def test_bad_frames_are_refused_and_change_nothing() -> None:
    devices, server = make()
    good = devices[0].upload()
    before = server.table.h.clone()
    for message in bad_messages(good):
        with pytest.raises(PeerError):
            server.ask(message, None)
    assert torch.equal(server.table.h, before)
    assert server.ask(good, None).t == 1


def test_a_message_is_looked_at_once_and_serves_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, server = make()
    looked: list[Embeddings] = []
    check = Server.check
    monkeypatch.setattr(Server, "check", lambda self, message: (looked.append(message), check(self, message))[1])
    arrived, direct = devices[0].upload(), devices[1].upload()
    server.check(arrived)  # as it comes over a network; its round begins later
    with pytest.raises(PeerError):
        server.check(replace(arrived, position=1))
    for message in (arrived, direct):
        pending = server.ask(message, None)
        server.accept(Release(pending.t, pending.m, 0, np.array([0.0])))
    assert sum(message is arrived for message in looked) == 1
    assert sum(message is direct for message in looked) == 1
    for message in (arrived, direct):  # its position is over
        with pytest.raises(PeerError, match="must send batch 1 of its schedule, got 0"):
            server.ask(message, None)


def test_a_copy_of_a_checked_message_is_looked_at_again() -> None:
    devices, server = make()
    good = devices[0].upload()
    server.check(good)
    for message in bad_messages(good):
        with pytest.raises(PeerError):
            server.ask(message, None)
    assert server.ask(good, None).t == 1


class SeveralDevice(DeviceRule):
    """Sends its embeddings as `n` arrays, each a little further on, and keeps the numbers that come back."""

    def __init__(self, network: torch.nn.Module, n: int) -> None:
        self.network, self.n = network, n
        self.velocity = []
        self.answers: list[list[float]] = []

    @torch.no_grad()
    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        return tuple(self.network(x) + k for k in range(self.n))

    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        assert len(Delta) == self.n
        self.answers.append(Delta.tolist())


class SeveralServer(ServerRule):
    """Returns one sum for each array; the table keeps the first."""

    __slots__ = ()

    def answer(self, asked: Question) -> Answer:
        asked.put(asked.h[0])
        keep = np.ones(len(asked.y), bool) if asked.contributes is None else asked.contributes
        return Answer(np.array([h[keep].sum(dtype=np.float64) for h in asked.h]), 1.0, divisor=len(asked.y))


@pytest.mark.parametrize("codec_name", ["float32", "float16"])
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_a_method_may_send_and_get_any_number(n: int, codec_name: Literal["float32", "float16"]) -> None:
    """`n` arrays up and `n` numbers down pass device, codec and server without a change to any of them."""
    _, made = make()
    facts = replace(made.method.facts, arrays=lambda K: n, numbers=lambda B, width, q, K, clipped: n)
    several = SeveralServer(facts, made.method.head_rule, made.method.loss, math.inf, 1, 0, 1)
    schedule = BatchSchedule(0, 1, B, D)
    x = torch.randn(D, 5, generator=generator(1))
    device = Device(1, SeveralDevice(torch.nn.Linear(5, K), n), x, x[:4], schedule)
    server = Server(several, Table(D, (K,), accelerator="cpu"), made.y_train, (schedule,), (LAM,))
    codec = Codec(codec_name, LAM, arrays=n, slopes=False)
    for t in (1, 2):
        sent = device.upload()
        message = codec.decode(codec.encode(sent))
        assert isinstance(message, Embeddings)
        assert len(message.h) == n
        pending = server.ask(message, None)
        release = Release(t, 1, pending.position, pending.totals * pending.grid / pending.divisor)
        server.accept(release)
        received = codec.decode(codec.encode(release))
        assert isinstance(received, Release)
        device.receive(received)
        expected = [float(h.sum(dtype=np.float64)) / B for h in sent.h]
        assert device.method.answers[-1] == pytest.approx(expected, abs=1e-6 if codec_name == "float32" else 0.02)
        assert torch.equal(server.table.h[schedule.ids(t - 1).copy()], torch.tensor(message.h[0]))
    for wrong in (n - 1, n + 1):
        with pytest.raises(PeerError, match=f"must send {n} embeddings"):
            server.ask(replace(device.upload(), h=(sent.h[0],) * wrong), None)


def test_a_batch_that_was_prepared_is_the_one_that_is_sent() -> None:
    devices, _ = make()
    device, schedule = devices[0], BatchSchedule(0, 1, B, D)
    first = device.upload()
    device.prepare()
    again = device.upload()  # the prepared one is the next batch, not this one
    assert [h.tobytes() for h in again.h] == [h.tobytes() for h in first.h]
    device.receive(Release(1, 1, 0, np.array([0.0])))
    prepared = device.upload()
    expected = device.method.embeddings(device.x_train[schedule.ids(1).copy()], 1)
    assert [h.tobytes() for h in prepared.h] == [h.numpy().tobytes() for h in expected]


def test_a_fill_is_refused_outside_its_rows_and_after_round_one() -> None:
    devices, server = make()
    for message in (
        Fill(1, -1, np.zeros((2, K), np.float32)),
        Fill(1, D - 1, np.zeros((2, K), np.float32)),
        Fill(2, 0, np.zeros((1, 9), np.float32)),
    ):
        with pytest.raises(PeerError):
            server.fill(message)
    pending = server.ask(devices[0].upload(), None)
    server.accept(Release(pending.t, 1, 0, np.array([0.0])))
    with pytest.raises(PeerError, match="before round 1"):
        server.fill(next(devices[0].fill()))


def test_a_device_applies_only_the_release_it_waits_for() -> None:
    devices, _ = make()
    with pytest.raises(PeerError):
        devices[0].receive(Release(1, 1, 0, np.array([0.5])))
    devices[0].upload()
    for release in (Release(1, 2, 0, np.array([0.5])), Release(1, 1, 1, np.array([0.5]))):
        with pytest.raises(PeerError):
            devices[0].receive(release)
    before = devices[0].method.network.weight.clone()
    devices[0].receive(Release(1, 1, 0, np.array([0.0])))
    assert torch.equal(devices[0].method.network.weight, before)
    assert devices[0].position == 1


def test_a_repeated_upload_is_the_same() -> None:
    devices, _ = make()
    first, second = devices[1].upload(), devices[1].upload()
    assert np.array_equal(first.h[0], second.h[0])
    assert np.array_equal(first.h[1], second.h[1])


def test_delays_are_the_papers() -> None:
    """Device 1 goes five times, then device 2: its batch meets rows of device 1 that are up to 5 rounds old.

    It is round 6, one of those that are measured (every third, with two devices).
    """
    devices, server = make()
    seen = {}
    for m in (1, 1, 1, 1, 1, 2):
        device = devices[m - 1]
        if m == 2:
            ids = BatchSchedule(0, 2, B, D).ids(0)
            for i in ids:
                uploads = [k for k in range(5) if i in BatchSchedule(0, 1, B, D).ids(k)]
                # weights used in upload k had seen k releases: device time k
                seen[int(i)] = 5 - max(uploads, default=0)
            before = copy.deepcopy(server.delays)
        pending = server.ask(device.upload(), None)
        release = Release(pending.t, m, pending.position, np.array([0.0]))
        server.accept(release)
        device.receive(release)
    stale = sum(seen.values())
    assert server.delays.totals == [before.totals[0] + stale, before.totals[1]]  # only device 1's rows were stale
    assert server.delays.counts == [before.counts[0] + B, before.counts[1]]
    assert server.delays.mean_of(1) == server.delays.totals[0] / server.delays.counts[0]
    assert server.delays.mean == sum(server.delays.totals) / sum(server.delays.counts)
    assert server.delays.most == max(seen.values())


def test_sgd_and_zo_heads_descend_and_frozen_does_not_move() -> None:
    for rule, moves in (("frozen", False), ("joint-zo", True), ("zo", True), ("sgd", True)):
        devices, server = make(rule)
        before = [p.clone() for p in server.method.head.parameters()]
        pending = server.ask(devices[0].upload(), None)
        server.accept(Release(pending.t, 1, 0, np.array([0.3])))
        same = all(torch.equal(a, b) for a, b in zip(before, server.method.head.parameters(), strict=True))
        assert same is not moves, rule
