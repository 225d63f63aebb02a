"""Makes the server from a configuration: its table, its head, how the head moves, and its method."""

from __future__ import annotations

import math

from dpzv.config import per_device
from dpzv.methods.heads import HeadParts, make_head_rule
from dpzv.methods.rules import make_server_rule
from dpzv.methods.steps import Steps
from dpzv.models.losses import labels_of, per_record_loss
from dpzv.privacy.head_steps import mechanism_of
from dpzv.privacy.plan import PrivacyPlan
from dpzv.protocol.server import Schedules, Server
from dpzv.runtime.mapped_table import table_of
from dpzv.runtime.run_plan import ServerParts
from dpzv.runtime.server_head import first_head

__all__ = ["make_server"]


def make_server(given: ServerParts, schedules: Schedules, plan: PrivacyPlan, counts: tuple[float, ...]) -> Server:
    """The server, with an empty table.

    `plan` is the one that the ledger holds. `counts` are the noisy numbers of records in all classes, for the base
    rate; none if they are not counted.
    """
    config, records, widths = given.config, given.records, given.widths
    chosen = config.head
    lams, T = per_device("train.lam", config.train.lam, plan.M), max(plan.T, 1)
    y_train = labels_of(records.y_train, records.task, config.runtime.accelerator)
    table = table_of(config, widths, schedules)
    private = None
    if chosen.mechanism:
        sizes = {"D": plan.D, "batch": plan.head_batch}
        private = mechanism_of(chosen.rule).noise(given.noise, **sizes, z=plan.z, C_0=chosen.C_0)
    parts = HeadParts(
        head=first_head(config, records, sum(widths), counts),
        loss=per_record_loss(records.task),
        steps=Steps(chosen.step, chosen.momentum, config.train.schedule, T),
        seed=config.train.seed,
        lam=lams[0],
        table=table.h,
        y=y_train,
        noise=private,
    )
    head_rule = make_head_rule(chosen.rule, parts)
    C = math.inf if config.noise.where == "uplink" else config.privacy.C  # as published, answers are not clipped
    train = config.train
    method = make_server_rule(train.method, head_rule, parts.loss, C, q=train.q, seed=train.seed, K=train.directions)
    return Server(method, table, y_train, schedules, lams)
