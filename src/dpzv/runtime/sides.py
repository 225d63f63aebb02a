"""The two sides of a run from its configuration: what a device holds, and what the server holds."""

from __future__ import annotations

import math

import msgspec
import torch

from dpzv.config import Config, per_device
from dpzv.data.schedule import BatchSchedule
from dpzv.errors import ConfigError
from dpzv.methods.dpsgd import DPSGD, Coins
from dpzv.methods.heads import HeadRule, make_head_rule
from dpzv.methods.make import make_device_rule, make_server_rule
from dpzv.methods.rival import Uplink
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import Loss, per_record_loss
from dpzv.models.rowwise import require_rowwise
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import MOST_NUMBERS, PrivacyPlan
from dpzv.protocol.codec import Codec
from dpzv.protocol.device import Device
from dpzv.protocol.server import Server
from dpzv.protocol.table import Table
from dpzv.rng import torch_generator
from dpzv.terms import HeadRuleName, Task

__all__ = ["DevicePlan", "accelerator_of", "codec_of", "labels_of", "make_device", "make_head", "make_server"]

ETA_0: dict[HeadRuleName, float] = {"dp-sgd": 1.0, "sgd": 0.1, "joint-zo": 1e-3, "zo": 1e-3, "frozen": 0.0}
"""Steps of w_0 where `head.eta_0` is unset: gradient rules bear far larger ones than zeroth-order rules."""


class DevicePlan(msgspec.Struct, frozen=True):
    """What a device that adds no noise itself must know of the plan: sizes, which cost no calibration."""

    M: int
    D: int
    T: int
    B: int
    sigma_h: float = 0.0


def make_device(
    config: Config,
    m: int,
    network: torch.nn.Module,
    x_train: torch.Tensor,
    x_test: torch.Tensor,
    plan: PrivacyPlan | DevicePlan,
    noise: NoiseSource,
) -> tuple[Device, int]:
    """Device m, ready for round 1, and the width of its embeddings."""
    accelerator, i = accelerator_of(config), m - 1
    network.to(accelerator).eval()
    x_train = x_train.to(accelerator)
    width = require_rowwise(network, x_train[:8], name=f"device {m}")
    if width > MOST_NUMBERS:
        raise ConfigError(f"an embedding has at most {MOST_NUMBERS} numbers, got {width} at device {m}; narrow it.")
    rule = make_device_rule(
        config.train.method,
        network,
        m=m,
        seed=config.train.seed,
        lam=per_device("train.lam", config.train.lam, plan.M)[i],
        steps=Steps(
            per_device("train.eta_m", config.train.eta_m, plan.M)[i],
            config.train.momentum,
            config.train.schedule,
            max(plan.T, 1),
        ),
        uplink=_uplink(config, plan, noise),
    )
    schedule = BatchSchedule(config.train.seed, m, plan.B, plan.D)
    return Device(m, rule, x_train, x_test.to(accelerator), schedule), width


def make_server(
    config: Config,
    task: Task,
    outputs: int,
    y_train: torch.Tensor,
    widths: tuple[int, ...],
    plan: PrivacyPlan,
    noise: NoiseSource,
) -> Server:
    """The server, with an empty table of `widths` numbers a device."""
    lams = per_device("train.lam", config.train.lam, plan.M)
    schedules = tuple(BatchSchedule(config.train.seed, m, plan.B, plan.D) for m in range(1, plan.M + 1))
    table = Table(plan.D, widths, accelerator=accelerator_of(config), path=config.table.path)
    loss, head = per_record_loss(task), make_head(config, sum(widths), outputs, "w_0")
    head_rule = _head_rule(config, plan, noise, head, loss, table.h, y_train, lams[0])
    C = math.inf if config.noise.where == "uplink" else config.privacy.C  # as published, answers are not clipped
    rule = make_server_rule(config.train.method, head, head_rule, loss, C, q=config.train.q, seed=config.train.seed)
    return Server(rule, table, y_train, schedules, lams)


def codec_of(config: Config, m: int, M: int) -> Codec:
    """How the messages of device m of M become bytes."""
    lam = per_device("train.lam", config.train.lam, M)[m - 1]
    return Codec(config.codec.name, lam, per_record=config.train.method == "vafl")


def make_head(config: Config, inputs: int, outputs: int, stream: str) -> Head:
    """A head with its own random start, named by `stream`, on the run's accelerator."""
    head = Head(inputs, config.head.hidden, outputs, torch_generator(config.train.seed, "head", stream))
    return head.to(config.runtime.accelerator)


def labels_of(y: object, task: Task, accelerator: str) -> torch.Tensor:
    """Labels as the loss takes them, on the accelerator."""
    kind = torch.int64 if task == "classes" else torch.float32
    return torch.as_tensor(y).to(accelerator, kind)


def accelerator_of(config: Config) -> str:
    """The run's accelerator, once it is known to be there."""
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


def _uplink(config: Config, plan: PrivacyPlan | DevicePlan, noise: NoiseSource) -> Uplink:
    """How embeddings are protected on their way up: not at all, or with the plan's noise."""
    C_h = config.privacy.C_h if plan.sigma_h else math.inf
    return Uplink(C_h, plan.sigma_h, lambda shape, stream: noise.gaussian(shape, *stream))


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
