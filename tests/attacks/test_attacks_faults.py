"""Each planted fault is found by the strategy that is named for it, and the correct part is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from attack_targets import SEED, planted, strategy, target
from numpy.typing import NDArray

from dpzv.attacks.audit import Finding, attack
from dpzv.attacks.target import Machine, Target
from dpzv.config import per_device
from dpzv.data.schedule import BatchSchedule
from dpzv.methods.dpsgd import DPSGD
from dpzv.methods.dpzv import DpzvServer
from dpzv.methods.heads import HeadParts, OwnSGD
from dpzv.methods.rules import Answer, Question
from dpzv.methods.steps import Steps
from dpzv.privacy.noise import ExactNoise, SeededNoise, Totals
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings, Message
from dpzv.rng import numpy_generator, seed_of
from dpzv.sensitivity import GRID_BITS
from dpzv.zo.estimator import delta_zo


def run(name: str, attacked: Target, trials: int = 300) -> Finding:
    """What the strategy called `name` shows."""
    return attack(attacked, strategy(name), trials)


class Weak(ExactNoise):
    """A tenth of the noise."""

    def release(
        self, totals: Totals, *, grid: float, divisor: int, sigma_dp: float, t: int, m: int
    ) -> NDArray[np.float64]:
        return super().release(totals, grid=grid, divisor=divisor, sigma_dp=sigma_dp / 10, t=t, m=m)


def test_noise_ten_times_too_small_is_found_by_the_matched_filter() -> None:
    assert run("matched-filter", target(Weak())).above
    assert not run("matched-filter", target()).above


class OneSided(DpzvServer):
    """The published clip, min(x, C)."""

    @torch.no_grad()
    def answer(self, asked: Question) -> Answer:
        losses = []
        for version in asked.h:
            asked.put(version)
            losses.append(self.loss(self.head_rule.output(asked.t, asked.rows, asked.lam), asked.y))
        terms = torch.from_numpy(delta_zo(losses[0], losses[1], asked.lam)).clamp(max=self.C)
        if asked.contributes is not None:
            terms = torch.where(torch.from_numpy(asked.contributes), terms, 0.0)
        grid = math.ldexp(self.C, -GRID_BITS)
        total = int((terms / grid).round().to(torch.int64).sum())
        return Answer(np.array([total]), grid, divisor=len(asked.y))


def one_sided(machine: Machine) -> None:
    rule = machine.run.server.method
    machine.run.server.method = OneSided(rule.facts, rule.head_rule, rule.loss, rule.C, rule.q, rule.seed, rule.K)


def test_a_one_sided_clip_is_found_by_strongly_negative_differences() -> None:
    assert run("negative", planted(target(), one_sided)).above
    assert not run("negative", target()).above


def un_noised_head(machine: Machine) -> None:
    """The plan says frozen, the server takes gradient steps all the same."""
    rule = machine.run.server.method
    steps = Steps(eta=1e-3, momentum=0.0, schedule="constant", T=1)
    moving = OwnSGD(HeadParts(head=rule.head, loss=rule.loss, steps=steps, seed=SEED, lam=1.0))
    machine.run.server.method = DpzvServer(rule.facts, moving, rule.loss, rule.C, rule.q, rule.seed, rule.K)


def test_an_un_noised_head_is_found_by_a_huge_embedding() -> None:
    assert run("huge-embedding", planted(target(), un_noised_head)).above
    assert not run("huge-embedding", target()).above


def test_a_head_that_moves_by_the_released_value_is_not_flagged() -> None:
    assert not run("huge-embedding", target(rule="joint-zo", eta_0=0.1)).above


class Repeating(BatchSchedule):
    """Batches drawn with replacement from the first two of their records."""

    def ids(self, position: int) -> NDArray[np.int64]:
        return np.resize(BatchSchedule.ids(self, position)[:2], self.B)


def repeating(machine: Machine) -> None:
    known, *others = machine.run.schedules
    machine.run.schedules = (Repeating(known.seed, known.m, known.B, known.D), *others)
    machine.run.server.schedules = machine.run.schedules


def test_a_repeated_id_is_found() -> None:
    assert run("repeated-id", planted(target(), repeating)).above
    assert not run("repeated-id", target()).above


class Derived(ExactNoise):
    """Right in size and shape, but from the seed of a direction, which a device knows."""

    def release(
        self, totals: Totals, *, grid: float, divisor: int, sigma_dp: float, t: int, m: int
    ) -> NDArray[np.float64]:
        return totals * grid / divisor + sigma_dp * float(numpy_generator(SEED, "direction", m, t).standard_normal())


@pytest.mark.parametrize("noise", [Derived(), SeededNoise(seed_of(SEED, "noise"))], ids=["direction", "run seed"])
def test_noise_from_a_known_seed_is_found_by_regenerating_it(noise: ExactNoise | SeededNoise) -> None:
    assert run("known-seeds", target(noise)).above
    assert not run("matched-filter", target(noise)).above  # nothing else can see it
    assert not run("known-seeds", target()).above


def test_noise_from_a_secret_seed_is_not_found() -> None:
    """The rule is about who knows the seed: the same generator under a number nobody knows passes."""
    assert not run("known-seeds", target(SeededNoise(seed_of("nobody knows this")))).above


class SharedScale(Codec):
    """Eight bits a number, in units of the largest number of the batch."""

    def encode(self, message: Message) -> bytes:
        if isinstance(message, Embeddings):
            unit = max(np.abs(h).max() for h in message.h) / 127
            rounded = tuple((h / unit).round() * unit for h in message.h)
            message = Embeddings(message.m, message.position, rounded)
        return super().encode(message)


def lams_of(machine: Machine) -> tuple[float, ...]:
    return per_device("train.lam", machine.run.config.train.lam, machine.plan.M)


def shared_scale(machine: Machine) -> None:
    machine.run.codecs = tuple(SharedScale("float32", lam) for lam in lams_of(machine))


def half(machine: Machine) -> None:
    """Not a fault: the shipped codec with the shorter numbers."""
    machine.run.codecs = tuple(Codec("float16", lam) for lam in lams_of(machine))


def test_a_codec_scale_per_batch_is_found_by_an_outlier() -> None:
    assert run("shared-scale", planted(target(), shared_scale)).above
    assert not run("shared-scale", target()).above
    assert not run("shared-scale", planted(target(), half)).above


class FilledOnly(DPSGD):
    """The same expected batch, drawn from the rows that are filled."""

    def move(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        noise = self._noise
        for j in range(steps):
            _, stream = noise.sample(t, j)
            filled = torch.nonzero(self._table.abs().sum(dim=1)).flatten()
            drawn = stream.random(len(filled)) < min(1.0, noise.batch / len(filled))
            sums = self._sums(filled[torch.from_numpy(drawn)].numpy())
            added, _ = noise.update((), stream, self._shapes)
            for v, total, extra in zip(self.velocity, sums, added, strict=True):
                noisy = (total + torch.from_numpy(extra)).double() * (noise.grid or 1.0)
                v.copy_(noisy / noise.batch)  # without momentum


class WeakStep(DPSGD):
    """A thirtieth of the planned noise."""

    def move(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        planned = self._noise._scale
        self._noise._scale = planned / 30
        super().move(t, Delta, rows, y, steps)
        self._noise._scale = planned


def head_of(kind: type[DPSGD]) -> Callable[[Machine], None]:
    def plant(machine: Machine) -> None:
        machine.run.server.method.head_rule.__class__ = kind

    return plant


def test_sampling_the_filled_rows_only_is_found_with_the_noisy_sums() -> None:
    correct = target(rule="dp-sgd", q=0.03)
    assert run("filled-rows", planted(correct, head_of(FilledOnly)), 70).above
    assert not run("filled-rows", correct, 30).above


def test_head_steps_with_too_little_noise_are_found_with_the_noisy_sums() -> None:
    correct = target(rule="dp-sgd", q=1.0)  # without sampling the noise is all there is
    assert run("filled-rows", planted(correct, head_of(WeakStep)), 50).above
    assert not run("filled-rows", correct, 30).above
