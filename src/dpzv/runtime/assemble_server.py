"""What the server holds, from a configuration: its table, its head, how the head moves, and its method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from dpzv.config import Config, per_device
from dpzv.data.schedule import BatchSchedule
from dpzv.declarations import head_rule_facts
from dpzv.methods.heads import HeadParts, make_head_rule
from dpzv.methods.rules import make_server_rule
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import per_record_loss
from dpzv.privacy.head_steps import HeadNoise
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan
from dpzv.protocol.server import Server
from dpzv.protocol.table import Table
from dpzv.rng import torch_generator
from dpzv.terms import Task

__all__ = ["ServerRecords", "labels_of", "make_head", "make_server", "schedules_of"]


@dataclass(frozen=True, slots=True, eq=False)
class ServerRecords:
    """What the server knows about the records: the labels of those trained and tested on, and what they are.

    `outputs` are the numbers that a head gives for a record; `fingerprint` names the training records.
    """

    name: str
    task: Task
    outputs: int
    y_train: NDArray[Any]
    y_test: NDArray[Any]
    fingerprint: str


def make_server(
    config: Config,
    records: ServerRecords,
    widths: tuple[int, ...],
    schedules: tuple[BatchSchedule, ...],
    plan: PrivacyPlan,
    noise: NoiseSource,
) -> Server:
    """The server, with an empty table of `widths` numbers a device."""
    chosen, facts = config.head, head_rule_facts(config.head.rule)
    lams, T = per_device("train.lam", config.train.lam, plan.M), max(plan.T, 1)
    y_train = labels_of(records.y_train, records.task, config.runtime.accelerator)
    table = Table(plan.D, widths, accelerator=config.runtime.accelerator, path=config.table.path)
    eta_0 = facts.eta_0 if chosen.eta_0 is None else chosen.eta_0
    parts = HeadParts(
        head=make_head(config, sum(widths), records.outputs, "w_0"),
        loss=per_record_loss(records.task),
        steps=Steps(eta_0, chosen.momentum, config.train.schedule, T),
        seed=config.train.seed,
        lam=lams[0],
        table=table.h,
        y=y_train,
        noise=HeadNoise(noise, D=plan.D, batch=plan.head_batch, z=plan.z, C_0=chosen.C_0) if facts.sampled else None,
    )
    head_rule = make_head_rule(chosen.rule, parts)
    C = math.inf if config.noise.where == "uplink" else config.privacy.C  # as published, answers are not clipped
    method = make_server_rule(config.train.method, head_rule, parts.loss, C, q=config.train.q, seed=config.train.seed)
    return Server(method, table, y_train, schedules, lams)


def schedules_of(config: Config, plan: PrivacyPlan) -> tuple[BatchSchedule, ...]:
    """The public batches of every device."""
    return tuple(BatchSchedule(config.train.seed, m, plan.B, plan.D) for m in range(1, plan.M + 1))


def make_head(config: Config, inputs: int, outputs: int, stream: str) -> Head:
    """A head with its own random start, named by `stream`, on the run's accelerator."""
    head = Head(inputs, config.head.hidden, outputs, torch_generator(config.train.seed, "head", stream))
    return head.to(config.runtime.accelerator)


def labels_of(y: object, task: Task, accelerator: str) -> torch.Tensor:
    """Labels as the loss takes them, on the accelerator."""
    kind = torch.int64 if task == "classes" else torch.float32
    return torch.as_tensor(y).to(accelerator, kind)
