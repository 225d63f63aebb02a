"""What no party may change while a run lasts: all of its configuration but each party's own paths and machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec.structs import replace

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.schedule import BatchSchedule
from dpzv.privacy.ledger_checks import changes

__all__ = ["agreed", "bound", "changed"]


def agreed(config: Config) -> Config:
    """The configuration with empty values for what is a party's own.

    Where the records lie and how they are read may change, because a ledger knows the records by their fingerprint. It
    knows earlier runs by their claims, so their folders may be moved.
    """
    return replace(
        config,
        recipe="",
        data=replace(config.data, path="", parties=(), columns=(), encoder=""),
        # only the server has the ledgers of earlier runs; it tells devices how much these leave to a private start
        privacy=replace(config.privacy, parents=()),
        table=replace(config.table, path=""),
        runtime=replace(config.runtime, accelerator="cpu", threads=0, checkpoint_seconds=30.0),
    )


def bound(config: Config, schedules: Sequence[BatchSchedule]) -> str:
    """What a ledger is bound to, as TOML: the agreed configuration, and a hash of the batches of all devices."""
    digest = hashlib.blake2b(digest_size=16)
    for schedule in schedules:
        digest.update(f"{schedule.m} {schedule.B} {schedule.D} ".encode())
        digest.update(schedule.order.data)
    # the names of this section and its key are a format of the ledger
    return configuration.render(agreed(config)) + f'\n[schedules]\nhash = "{digest.hexdigest()}"\n'


def changed(began: Config, now: Config) -> str:
    """In words, the agreed settings in which two configurations differ; empty if there are none."""
    return changes(configuration.render(agreed(began)), configuration.render(agreed(now)))
