"""From a configuration and data to the parts of a run: devices, server, plan and clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from dpzv.config import Config, per_device
from dpzv.data.dataset import Dataset
from dpzv.errors import ConfigError
from dpzv.methods.rules import ServerRule
from dpzv.models.losses import Loss
from dpzv.privacy.coverage import PlanRequest
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.planning import make_plan, participation_cap
from dpzv.privacy.spent import parents_of
from dpzv.protocol.codec import Codec
from dpzv.protocol.device import Device
from dpzv.protocol.server import Server
from dpzv.runtime.clock import Speed, VirtualClock, equal_speeds, parse_compute
from dpzv.runtime.sides import DevicePlan, accelerator_of, codec_of, labels_of, make_device, make_server
from dpzv.terms import Task

__all__ = ["Parts", "assemble", "device_plan", "plan_of", "rounds_of"]


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
        participations=participation_cap(T=T, B=B, D=D, M=M, equal_speeds=_in_turns(config, speeds)),
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


def device_plan(config: Config, m: int, M: int, D: int) -> PrivacyPlan | DevicePlan:
    """What device m must know of the plan; only for noise that it adds itself, the plan is calibrated."""
    private_start = per_device("devices.start", config.devices.start, M)[m - 1] == "dp-pca"
    if private_start or config.noise.where == "uplink":
        return plan_of(config, D, M)
    return DevicePlan(M, D, rounds_of(config, D, M), config.train.B)


def _in_turns(config: Config, speeds: tuple[Speed, ...]) -> bool:
    """Whether devices take turns, so that none can use up another's share of the rounds."""
    return config.network.order == "turns" if config.runtime.kind == "network" else equal_speeds(speeds)


def assemble(
    config: Config, data: Dataset, networks: list[torch.nn.Module], plan: PrivacyPlan, noise: NoiseSource
) -> Parts:
    """Devices and server, each holding only its own part, ready for round 1."""
    accelerator, M = accelerator_of(config), len(networks)
    made = [
        make_device(
            config, i + 1, network, torch.from_numpy(data.x_train[i]), torch.from_numpy(data.x_test[i]), plan, noise
        )
        for i, network in enumerate(networks)
    ]
    devices, widths = [device for device, _ in made], tuple(width for _, width in made)
    outputs = data.n_classes if data.task == "classes" else 1
    y_train = labels_of(data.y_train, data.task, accelerator)
    server = make_server(config, data.task, outputs, y_train, widths, plan, noise)
    codecs = tuple(codec_of(config, m, M) for m in range(1, M + 1))
    return Parts(
        devices,
        server,
        codecs,
        VirtualClock(speeds_of(config, M), *_payloads(config, codecs, widths, server.method), config.train.seed),
        server.method.loss,
        data.task,
        outputs,
        labels_of(data.y_test, data.task, accelerator),
    )


def _payloads(
    config: Config, codecs: tuple[Codec, ...], widths: tuple[int, ...], rule: ServerRule
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes up and down of one batch of each device, without framing."""
    B = config.train.B
    up = [codec.embeddings_bytes(B, width, rule.uploads) for codec, width in zip(codecs, widths, strict=True)]
    down = [codec.answer_bytes(rule.numbers(B, width)) for codec, width in zip(codecs, widths, strict=True)]
    return tuple(up), tuple(down)
