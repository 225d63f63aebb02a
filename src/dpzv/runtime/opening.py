"""Opens a run. A new run gets a new ledger; one that has begun needs its own, and is refused without it."""

from __future__ import annotations

from typing import Any

from dpzv.errors import PrivacyRefused
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.ledger_file import refuse_ended
from dpzv.privacy.plan import PrivacyPlan, private_starts, start_event
from dpzv.protocol.server import Schedules
from dpzv.runtime import checkpoint
from dpzv.runtime.agreement import bound
from dpzv.runtime.gate import Gate
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import ServerParts

__all__ = ["open_gate"]


def open_gate(given: ServerParts, folder: RunFolder, schedules: Schedules) -> Gate:
    """The gate of the run in `folder`, with a new ledger only if the folder shows no trace of an earlier one.

    The plan that the ledger began with is used; a run is refused if the one that is asked for now differs from it in
    its noise, if an agreed setting or a schedule has changed, or if it was ended for good. Private starts are charged
    here, once.
    """
    config, records, plan = given.config, given.records, given.plan
    path, known = folder.path / "ledger.sqlite", checkpoint.rounds(folder.checkpoint)
    common: dict[str, Any] = {
        "plan": plan,
        "data_fingerprint": records.fingerprint,
        "noise_source": config.noise.source,
        "ids_of": lambda m, position: schedules[m - 1].ids(position),
        "agreed": bound(config, schedules),
    }
    # the ledger is made before anything else that a run leaves behind, so whatever is there was once charged
    new = not path.exists() and not folder.traces
    if new:
        ledger = Ledger.create(path, **common, names=records.names)
    else:
        ledger = Ledger.open(path, **common, at_least=known or 0)
    try:
        _refuse_other_noise(ledger.plan, plan)
        if ledger.ended and not folder.finished:  # at once: a server would else wait for batches that it may not answer
            refuse_ended(path)
        for i in private_starts(ledger.plan):
            ledger.charge(start_event(ledger.plan, i))
    except BaseException:
        ledger.close()
        raise
    return Gate(ledger, given.noise)


def _refuse_other_noise(began: PrivacyPlan, now: PrivacyPlan) -> None:
    """Refuse to go on under an accountant that would plan other noise for the same run."""
    if (began.z, began.sigma_dp) != (now.z, now.sigma_dp):
        raise PrivacyRefused(
            f"the run began with head noise z={began.z!r} and release noise sigma_dp={began.sigma_dp!r}, the installed "
            f"accountant gives {now.z!r} and {now.sigma_dp!r}; install dpzv and what it needs in the versions "
            "that it began with, or start a new run."
        )
