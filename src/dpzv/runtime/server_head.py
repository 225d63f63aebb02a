"""The server's head, from a configuration: which kind it is, and the base rate at which its outputs start."""

from __future__ import annotations

import math

from dpzv.config import Config
from dpzv.data.dataset import ServerRecords
from dpzv.models.head import NO_OFFSET, Head, Offset, SumHead, base_offset, seeded_head
from dpzv.privacy.label_counts import frequencies

__all__ = ["first_head"]


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
