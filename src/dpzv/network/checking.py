"""All reasons to refuse a party's start that can be found without the other parties (`dpzv check`).

The checks are those of a start. Nothing is sent, and nothing is written.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from msgspec import Struct

from dpzv.data.party_records import LabelTable, read_features, read_labels
from dpzv.errors import DpzvError
from dpzv.network.beginning import early_plan
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.party import Party
from dpzv.runtime.device_networks import mixed_columns
from dpzv.runtime.readiness import fitting_plan, refuse_folder, refuse_out
from dpzv.runtime.run_folder import RunFolder

__all__ = ["findings_of"]


class Findings(Struct, frozen=True):
    """What a party should know before it starts.

    facts: sentences that anybody may read. odd: sentences about its own records, which are for this party alone.
    plain: columns about which nothing is odd. refused: what a start would be refused for although the records are read.
    """

    facts: list[str]
    odd: list[str]
    plain: list[str]
    refused: DpzvError | None = None


def findings_of(own: Party) -> Findings:
    """What a party should know; raises what its records would be refused for, whatever its keys and folder are."""
    return _server(own) if own.file.listen else _device(own)


def _server(own: Party) -> Findings:
    table = read_labels(own.data.of_server())
    facts, refused = [table.separated] if table.separated else [], None
    try:
        facts += _server_start(own, table)
    except DpzvError as error:
        facts.append(f"The file has {len(table.ids)} records.")
        refused = error
    odd = [table.warning()] if table.clipped else []
    classes = own.data.of_server().classes or ()
    counts = [int(np.count_nonzero(table.y == number)) for number in range(len(classes))]
    odd += [f"No record has the label '{name}'." for name, count in zip(classes, counts, strict=True) if not count]
    if classes:
        odd.append("Labels: " + ", ".join(f"{name} {count}" for name, count in zip(classes, counts, strict=True)) + ".")
    return Findings(facts, odd, [], refused)


def _server_start(own: Party, table: LabelTable) -> list[str]:
    """Facts about the server's run; raises the error with which it would refuse to start, with any records."""
    own.check_links()
    folder = RunFolder.of_run(own.out, own.config)
    refuse_folder(own.config, folder)
    with folder.held() if own.out.exists() else nullcontext():
        plan = early_plan(own.config, own.server_records(table), folder, charged=True)
    if plan is None:
        state = "is finished" if folder.finished else "has begun, and `dpzv server` goes on with it"
        return [f"The run in {own.out} {state}."]
    rows = f"The file has {len(table.ids)} records; if all parties share all of them, {plan.D} are trained on."
    return [rows, *(f"Note: {warning}" for warning in plan.warnings)]


def _device(own: Party) -> Findings:
    asked = own.data.of_device()
    table = read_features(asked)
    m, M = own.config.network.devices.index(own.file.name) + 1, len(own.config.network.devices)
    facts, refused = [table.separated] if table.separated else [], None
    rows = f"This is device {m} of {M}. The file has {len(table.ids)} records"
    facts.append(f"{len(asked.columns)} columns become {table.x.shape[1]} numbers a record.")
    if mixed := mixed_columns(own.config, m, M, table.x.shape[1]):
        facts.append(f"Note: {mixed}")
    try:
        own.check_links()
        folder = DeviceFolder(own.out)
        refuse_out(own.out)
        with folder.held() if own.out.exists() else nullcontext():
            Conversation(own.config, own.device_records(table), folder).check()
        plan = fitting_plan(own.config, m, table.x)
        rows += f"; if all parties share all of them, {plan.D} are trained on"
        facts += [f"Note: {warning}" for warning in plan.warnings]
    except DpzvError as error:
        refused = error
    facts.insert(0, f"{rows}.")
    odd = [sentence for tally in table.tallies for sentence in tally.notes()]
    return Findings(facts, odd, [tally.column.name for tally in table.tallies if not tally.notes()], refused)
