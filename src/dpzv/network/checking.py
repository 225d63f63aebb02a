"""Everything that a party's start could be refused for, as far as the party alone can know it (`dpzv check`).

The checks are those of a start. Nothing is sent, and nothing is written.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
from msgspec import Struct

from dpzv.data.party_records import read_features, read_labels
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.party import Party
from dpzv.network.serving import early_plan, open_folder
from dpzv.runtime.readiness import fitting_plan, refuse_folder, refuse_out

__all__ = ["Findings", "findings_of"]


class Findings(Struct, frozen=True):
    """What a party that may start should know.

    facts: sentences that anybody may read. odd: sentences about its own records, which are for this party alone.
    plain: columns about which nothing is odd.
    """

    facts: list[str]
    odd: list[str]
    plain: list[str]


def findings_of(own: Party) -> Findings:
    """Refuse what a start of this party would be refused for; else, what it should know."""
    own.check_links()
    return _server(own) if own.file.listen else _device(own)


def _server(own: Party) -> Findings:
    table = read_labels(own.data.of_server())
    folder = open_folder(own)
    refuse_folder(own.config, folder)
    with folder.held() if own.out.exists() else nullcontext():
        plan = early_plan(own.config, own.server_records(table), folder, charged=True)
    rows, facts = len(table.ids), [table.separated] if table.separated else []
    if plan is None:
        state = "is finished" if folder.finished else "has begun, and `dpzv server` goes on with it"
        facts.append(f"The run in {own.out} {state}.")
    else:
        facts.append(f"The file has {rows} records; if all parties share all of them, {plan.D} are trained on.")
        facts += [f"Note: {warning}" for warning in plan.warnings]
    odd = [table.warning()] if table.clipped else []
    classes = own.data.of_server().classes or ()
    counts = [int(np.count_nonzero(table.y == number)) for number in range(len(classes))]
    odd += [f"No record has the label '{name}'." for name, count in zip(classes, counts, strict=True) if not count]
    if classes:
        odd.append("Labels: " + ", ".join(f"{name} {count}" for name, count in zip(classes, counts, strict=True)) + ".")
    return Findings(facts, odd, [])


def _device(own: Party) -> Findings:
    table = read_features(own.data.of_device())
    features, folder = own.device_records(table), DeviceFolder(own.out)
    refuse_out(own.out)
    held: AbstractContextManager[None] = folder.held() if own.out.exists() else nullcontext()
    with held:
        Conversation(own.config, features, folder).check()
    m = own.config.network.devices.index(own.file.name) + 1
    plan = fitting_plan(own.config, m, features.x)
    facts = [table.separated] if table.separated else []
    facts += [
        f"This is device {m} of {plan.M}. The file has {len(table.ids)} records; if all parties share all of them, "
        f"{plan.D} are trained on.",
        f"{len(features.columns)} columns become {features.x.shape[1]} numbers a record.",
        *(f"Note: {warning}" for warning in plan.warnings),
    ]
    odd = [sentence for tally in table.tallies for sentence in tally.notes()]
    return Findings(facts, odd, [tally.column.name for tally in table.tallies if not tally.notes()])
