"""The server's head, from a configuration: which kind it is, and the base rate at which its outputs start."""

from __future__ import annotations

import math

from dpzv.config import Config
from dpzv.data.dataset import ServerRecords
from dpzv.declarations import head_rule_facts
from dpzv.errors import ConfigError
from dpzv.models.head import NO_OFFSET, Head, Offset, SumHead, base_offset, seeded_head
from dpzv.privacy.label_counts import frequencies

__all__ = ["check_head", "first_head"]


def check_head(config: Config, records: ServerRecords, widths: tuple[int, ...]) -> None:
    """Refuse a head that adds what cannot be added, and a base rate that does not fit the labels."""
    task, outputs, base = records.task, records.outputs, config.head.base
    if config.head.model == "sum" and head_rule_facts(config.head.rule).moves:
        raise ConfigError(
            f"a head that only adds has no weights that could move, so head.rule must be 'frozen', got "
            f"'{config.head.rule}'; set head.rule to 'frozen'."
        )
    if config.head.model == "sum" and set(widths) != {outputs}:
        raise ConfigError(
            f"a head that only adds needs devices of {outputs} number{'s' if outputs > 1 else ''} a record, as many as "
            f"it has outputs, got {', '.join(map(str, widths))}; set devices.embedding to {outputs}."
        )
    if base == "count" and not config.privacy.base_share:
        raise ConfigError(
            "counting labels needs a share of the budget, got privacy.base_share = 0; raise it, or give a public "
            "number as head.base."
        )
    if base == "count" and task == "regression":
        raise ConfigError(
            'only labels of classes can be counted, got head.base = "count" for a regression; give a public mean and '
            "scale as head.base, in units in which the public range of the labels is -1 to 1."
        )
    if base is not None and base != "count":
        base_offset(base, task, outputs)


def first_head(config: Config, records: ServerRecords, inputs: int, counts: tuple[float, ...]) -> Head | SumHead:
    """The server's model before the first round, with its outputs at the base rate."""
    base, offset = config.head.base, NO_OFFSET
    if counts:
        shares = frequencies(counts, len(records.y_train))
        logs = tuple(map(math.log, shares))
        offset = Offset(logs) if records.task == "classes" else base_offset(shares[1], "binary", 1)
    elif base is not None and base != "count":
        offset = base_offset(base, records.task, records.outputs)
    if config.head.model == "sum":
        return SumHead(records.outputs, offset).to(config.runtime.accelerator)
    head = seeded_head(inputs, config.head.hidden, records.outputs, config.train.seed)
    head.shift(offset)
    return head.to(config.runtime.accelerator)
