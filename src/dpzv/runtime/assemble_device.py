"""Makes a device from a configuration: its method with its network, its features and its batches."""

from __future__ import annotations

import math

import torch

from dpzv.config import Config, per_device
from dpzv.data.schedule import BatchSchedule
from dpzv.declarations import method_facts
from dpzv.errors import ConfigError
from dpzv.methods.rules import Uplink, make_device_rule
from dpzv.methods.steps import Steps
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import MOST_NUMBERS, PrivacyPlan
from dpzv.protocol.codec import Codec
from dpzv.protocol.device import Device
from dpzv.runtime.computed_once import known_rows
from dpzv.runtime.run_plan import Sizes

__all__ = ["codec_of", "make_device", "schedules_of", "uplink_of"]


def make_device(
    config: Config,
    m: int,
    network: torch.nn.Module,
    x_train: torch.Tensor,
    x_test: torch.Tensor,
    sizes: Sizes,
    uplink: Uplink,
) -> tuple[Device, int]:
    """Device m, ready for round 1, and the width of its embeddings."""
    accelerator, i = config.runtime.accelerator, m - 1
    network.to(accelerator).eval()
    x_train, x_test = x_train.to(accelerator), x_test.to(accelerator)
    known, known_test, width = known_rows(network, x_train, x_test, B=sizes.B, name=f"device {m}")
    if width > MOST_NUMBERS:
        raise ConfigError(f"an embedding has at most {MOST_NUMBERS} numbers, got {width} at device {m}; narrow it.")
    rule = make_device_rule(
        config.train.method,
        network,
        m=m,
        seed=config.train.seed,
        lam=per_device("train.lam", config.train.lam, sizes.M)[i],
        steps=Steps(
            per_device("train.eta_m", config.train.eta_m, sizes.M)[i],
            config.train.momentum,
            config.train.schedule,
            max(sizes.T, 1),
            config.train.directions,
        ),
        uplink=uplink,
    )
    schedule = BatchSchedule(config.train.seed, m, sizes.B, sizes.D)
    return Device(m, rule, known, known_test, schedule), width


def schedules_of(config: Config, plan: PrivacyPlan) -> tuple[BatchSchedule, ...]:
    """The public batches of every device."""
    return tuple(BatchSchedule(config.train.seed, m, plan.B, plan.D) for m in range(1, plan.M + 1))


def codec_of(config: Config, m: int, M: int) -> Codec:
    """How the messages of device m, one of M, become bytes."""
    lam = per_device("train.lam", config.train.lam, M)[m - 1]
    facts, train = method_facts(config.train.method), config.train
    return Codec(
        config.codec.name,
        lam,
        arrays=facts.arrays(train.directions),
        slopes=facts.slopes,
        per_record=facts.per_record,
        seed=train.seed,
    )


def uplink_of(config: Config, plan: PrivacyPlan | None, noise: NoiseSource) -> Uplink:
    """How embeddings are protected on their way up: with the plan's noise, or not at all."""
    sigma_h = plan.sigma_h if plan else 0.0
    C_h = config.privacy.C_h if sigma_h else math.inf
    return Uplink(C_h, sigma_h, lambda shape, stream: noise.gaussian(shape, *stream))
