"""Checks of a run's settings and folder that need no other party. They write nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from dpzv.config import Config
from dpzv.data.schedule import holdout
from dpzv.durable import refuse_unwritable
from dpzv.privacy.ledger_checks import refuse_copy, refuse_stateless
from dpzv.privacy.ledger_file import refuse_ended, refuse_lost, refuse_second_copy, snapshot
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.assemble_device import make_device, uplink_of
from dpzv.runtime.device_networks import make_network, with_plain_starts
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import noise_of, plan_of, sizes_of

__all__ = ["fitting_plan", "refuse_folder", "refuse_out"]

FEW = 64
"""The rows of a file that are enough to see whether a network fits it."""


def refuse_out(folder: Path) -> None:
    """Refuse a party's folder that cannot be written."""
    refuse_unwritable(folder, "choose another `out`, or make it writable")


def refuse_folder(config: Config, folder: RunFolder) -> None:
    """Refuse a folder in which a run (`open_gate`) could neither begin nor go on, whatever its records are."""
    refuse_out(folder.path)
    if config.noise.source == "exact":
        refuse_stateless()
    path = folder.path / "ledger.sqlite"
    if not path.exists() and not folder.traces:
        return
    refuse_lost(path)
    view = read_ledger(path)

    def look(connection: sqlite3.Connection) -> None:
        refuse_second_copy(path, connection)
        if view.noise_source == "exact":
            refuse_copy(path, view.run_id, connection, view.releases)

    snapshot(path, look)
    if view.ended and not folder.finished:
        refuse_ended(path)


def fitting_plan(config: Config, m: int, x: NDArray[Any]) -> PrivacyPlan:
    """Refuse a device m whose network does not fit its features `x` [n, d_m], and plan a run that shares all n records.

    A private start is not made here: a network of the same shape takes its place.
    """
    accelerator_of(config)
    M, noise, few = len(config.network.devices), noise_of(config), torch.from_numpy(x[:FEW])
    plan = plan_of(config, len(holdout(len(x), config.data.holdout)[0]), M)
    plain = with_plain_starts(config, M)
    network = make_network(plain, m, M, x[:FEW], None, noise)
    make_device(plain, m, network, few, few[:0], sizes_of(config, plan.D, M), uplink_of(plain, None, noise))
    return plan
