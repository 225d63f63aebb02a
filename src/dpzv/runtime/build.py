"""From a configuration and data to the parts of a run: devices, server, plan and clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from dpzv.config import Config, per_device
from dpzv.data.dataset import Dataset
from dpzv.data.schedule import BatchSchedule
from dpzv.errors import ConfigError
from dpzv.methods.dpsgd import DPSGD, Coins
from dpzv.methods.heads import HeadRule, make_head_rule
from dpzv.methods.make import make_device_rule, make_server_rule
from dpzv.methods.rival import Uplink
from dpzv.methods.rules import ServerRule
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import Loss, per_record_loss
from dpzv.models.rowwise import require_rowwise
from dpzv.privacy.coverage import PlanRequest
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import MOST_NUMBERS, PrivacyPlan
from dpzv.privacy.planning import make_plan, participation_cap
from dpzv.privacy.spent import parents_of
from dpzv.protocol.codec import Codec
from dpzv.protocol.device import Device
from dpzv.protocol.server import Server
from dpzv.protocol.table import Table
from dpzv.rng import torch_generator
from dpzv.runtime.clock import Speed, VirtualClock, equal_speeds, parse_compute
from dpzv.terms import HeadRuleName, Task

__all__ = ["Parts", "assemble", "make_head", "plan_of", "rounds_of"]


ETA_0: dict[HeadRuleName, float] = {"dp-sgd": 1.0, "sgd": 0.1, "joint-zo": 1e-3, "zo": 1e-3, "frozen": 0.0}
"""Steps of w_0 where `head.eta_0` is unset: gradient rules bear far larger ones than zeroth-order rules."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that takes part in a run, before its first round."""

    devices: list[Device]
    server: Server
    codecs: tuple[Codec, ...]
    clock: VirtualClock
    loss: Loss
    task: Task
    outputs: int
    y_test: torch.Tensor


def rounds_of(config: Config, D: int, M: int) -> int:
    """T: the rounds over all devices, from `train.rounds` or `train.passes`."""
    if config.train.rounds is not None:
        return config.train.rounds
    assert config.train.passes is not None
    return M * math.floor(config.train.passes * D / config.train.B)


def speeds_of(config: Config, M: int) -> tuple[Speed, ...]:
    """The virtual speeds of the M devices."""
    computes: tuple[float | str, ...] = per_device("devices.compute", config.devices.compute, M)
    bandwidths = per_device("devices.bandwidth", config.devices.bandwidth, M)
    latencies = per_device("devices.latency", config.devices.latency, M)
    for latency in latencies:
        if latency < 0:
            raise ConfigError(f"devices.latency must be at least 0, got {latency}; it is seconds each way.")
    return tuple(
        Speed(*parse_compute(compute), bandwidth, latency)
        for compute, bandwidth, latency in zip(computes, bandwidths, latencies, strict=True)
    )


def plan_of(config: Config, D: int, M: int) -> PrivacyPlan:
    """The privacy plan of a run over D records and M devices; refuses what it cannot cover."""
    privacy, T, B = config.privacy, rounds_of(config, D, M), config.train.B
    if B > D:
        raise ConfigError(f"train.B must be at most the number of records {D}, got {B}; lower train.B.")
    speeds = speeds_of(config, M)
    request = PlanRequest(
        epsilon=privacy.epsilon,
        delta_dp=privacy.delta_dp,
        accounting=privacy.accounting,
        neighbours=privacy.neighbours,
        protects=privacy.protects,
        C=privacy.C,
        B=B,
        D=D,
        M=M,
        T=T,
        participations=participation_cap(T=T, B=B, D=D, M=M, equal_speeds=equal_speeds(speeds)),
        min_batch=privacy.min_batch,
        head_rule=config.head.rule,
        starts=per_device("devices.start", config.devices.start, M),
        start_share=privacy.start_share,
        head_batch=min(config.head.batch, D),
        # without rounds the head in the loop is for nothing, unless it is the one that is kept
        head_steps=config.head.steps if T or config.head.final == "private" else 0,
        head_share=privacy.head_share,
        parents=parents_of([Path(folder) for folder in privacy.parents]),
        method=config.train.method,
        where=config.noise.where,
        C_h=privacy.C_h,
    )
    return make_plan(request)


def make_head(config: Config, inputs: int, outputs: int, stream: str) -> Head:
    """A head with its own random start, named by `stream`, on the run's accelerator."""
    head = Head(inputs, config.head.hidden, outputs, torch_generator(config.train.seed, "head", stream))
    return head.to(config.runtime.accelerator)


def assemble(
    config: Config, data: Dataset, networks: list[torch.nn.Module], plan: PrivacyPlan, noise: NoiseSource
) -> Parts:
    """Devices and server, each holding only its own part, ready for round 1."""
    accelerator = _accelerator(config)
    D, M = len(data.y_train), len(networks)
    T, seed = rounds_of(config, D, M), config.train.seed
    lams = per_device("train.lam", config.train.lam, M)
    etas = per_device("train.eta_m", config.train.eta_m, M)
    schedules = tuple(BatchSchedule(seed, m, config.train.B, D) for m in range(1, M + 1))
    uplink = _uplink(config, plan, noise)
    devices, widths = [], []
    for i, network in enumerate(networks):
        m = i + 1
        network.to(accelerator).eval()
        x_train = torch.from_numpy(data.x_train[i]).to(accelerator)
        widths.append(_width(require_rowwise(network, x_train[:8], name=f"device {m}"), m))
        steps = Steps(etas[i], config.train.momentum, config.train.schedule, max(T, 1))
        rule = make_device_rule(config.train.method, network, m=m, seed=seed, lam=lams[i], steps=steps, uplink=uplink)
        devices.append(Device(m, rule, x_train, torch.from_numpy(data.x_test[i]).to(accelerator), schedules[i]))
    outputs = data.n_classes if data.task == "classes" else 1
    loss = per_record_loss(data.task)
    table = Table(D, tuple(widths), accelerator=accelerator, path=config.table.path)
    y_train = _labels(data.y_train, data.task, accelerator)
    head = make_head(config, sum(widths), outputs, "w_0")
    head_rule = _head_rule(config, plan, noise, head, loss, table.h, y_train, lams[0])
    C = math.inf if config.noise.where == "uplink" else config.privacy.C  # as published, answers are not clipped
    server_rule = make_server_rule(config.train.method, head, head_rule, loss, C, q=config.train.q)
    server = Server(server_rule, table, y_train, schedules, lams, seed)
    codecs = tuple(Codec(config.codec.name, lam, per_record=plan.per_record) for lam in lams)
    return Parts(
        devices,
        server,
        codecs,
        VirtualClock(speeds_of(config, M), *_payloads(config, codecs, widths, server_rule), seed),
        loss,
        data.task,
        outputs,
        _labels(data.y_test, data.task, accelerator),
    )


def _uplink(config: Config, plan: PrivacyPlan, noise: NoiseSource) -> Uplink:
    """How embeddings are protected on their way up: not at all, or with the plan's noise."""
    C_h = config.privacy.C_h if plan.sigma_h else math.inf
    return Uplink(C_h, plan.sigma_h, lambda shape, stream: noise.gaussian(shape, *stream))


def _payloads(
    config: Config, codecs: tuple[Codec, ...], widths: list[int], rule: ServerRule
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes up and down of one batch of each device, without framing."""
    B = config.train.B
    up = [codec.embeddings_bytes(B, width, rule.uploads) for codec, width in zip(codecs, widths, strict=True)]
    down = [codec.answer_bytes(rule.numbers(B, width)) for codec, width in zip(codecs, widths, strict=True)]
    return tuple(up), tuple(down)


def _head_rule(
    config: Config,
    plan: PrivacyPlan,
    noise: NoiseSource,
    head: Head,
    loss: Loss,
    table: torch.Tensor,
    y_train: torch.Tensor,
    lam: float,
) -> HeadRule:
    """How w_0 moves in this run."""
    chosen = config.head
    eta_0 = ETA_0[chosen.rule] if chosen.eta_0 is None else chosen.eta_0
    steps = Steps(eta_0, chosen.momentum, config.train.schedule, max(plan.T, 1))
    if chosen.rule == "dp-sgd":
        coins: Coins = lambda t, j: noise.generator("head", t, j)  # noqa: E731
        return DPSGD(head, loss, table, y_train, coins, batch=plan.head_batch, z=plan.z, C_0=chosen.C_0, steps=steps)
    return make_head_rule(chosen.rule, head, loss, lam=lam, steps=steps, seed=config.train.seed)


def _width(width: int, m: int) -> int:
    if width > MOST_NUMBERS:
        raise ConfigError(f"an embedding has at most {MOST_NUMBERS} numbers, got {width} at device {m}; narrow it.")
    return width


def _labels(y: object, task: Task, accelerator: str) -> torch.Tensor:
    kind = torch.int64 if task == "classes" else torch.float32
    return torch.as_tensor(y).to(accelerator, kind)


def _accelerator(config: Config) -> str:
    name = config.runtime.accelerator
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("runtime.accelerator is 'cuda', but torch finds no CUDA device; use 'cpu'.")
    if name == "cuda":
        # torch rounds the inputs of convolutions to 11 bits by default; the difference of two nearly equal
        # losses needs all 24
        torch.backends.cudnn.allow_tf32 = False
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    return name
