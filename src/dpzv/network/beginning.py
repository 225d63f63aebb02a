"""A run begins at the server: devices send their ids, the shared records are found, the run is opened.

With millions of records each of these takes long, so a thread does it (`aside.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

from dpzv.config import Config, per_device
from dpzv.network import wire
from dpzv.network.alignment_state import AlignmentState, LabelRecords, digest_of
from dpzv.network.aside import aside
from dpzv.network.greeting import hashed_ids
from dpzv.network.transport import Peer
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import ServerParts, check_head, fewest_of, named_parents, noise_of, plan_of, warn
from dpzv.runtime.server_run import ServerRun

__all__ = ["align", "alignment_of", "early_plan", "hear_ids", "open_aside", "open_run", "tell_rows"]


def alignment_of(config: Config, labels: LabelRecords, folder: RunFolder) -> AlignmentState:
    """Which records the parties of a run share, as far as that is known."""
    share, psi = config.data.holdout, config.network.alignment == "psi"
    return AlignmentState(folder.path, labels, len(config.network.devices), share, fewest_of(config, share), psi)


def early_plan(config: Config, labels: LabelRecords, folder: RunFolder, *, charged: bool = False) -> PrivacyPlan | None:
    """Do the checks that need no device, and plan the run as if all records of `labels` were shared.

    `None` if the run has begun before. What is refused with all records would also be refused with fewer of them. The
    cost of earlier runs is an exception, since it depends on the records they share with this one: it counts only if
    it is `charged`.
    """
    accelerator_of(config)
    M = len(config.network.devices)
    alignment = alignment_of(config, labels, folder)
    if alignment.complete:
        return None
    records = alignment.records()
    check_head(config, records, per_device("devices.embedding", config.devices.embedding, M))
    parents = named_parents(config, records.names, folder.path)
    return plan_of(config, len(records.y_train), M, parents if charged else ())


async def hear_ids(peer: Peer, hello: wire.Hello, alignment: AlignmentState) -> None:
    """Take the ids of a device that has been asked for them: keyed hashes, or what may be known of hidden ids."""
    hidden = alignment.hidden
    if hidden is not None:
        hidden.start()
    hashes = await hashed_ids(peer, hello.ids)
    digest = await asyncio.to_thread(digest_of, peer.m, hashes)
    if hidden is not None:
        hashes, digest = await hidden.known(peer, hashes), hello.ids_sha256
    peer.require_open()
    alignment.take(peer.m, hashes, digest)


def open_run(
    config: Config, alignment: AlignmentState, folder: RunFolder, noise: NoiseSource | None = None
) -> ServerRun:
    """The server's run over the aligned records, at its start or at its last checkpoint.

    Only an audit has another source of `noise` than the configuration's.
    """
    records, M = alignment.records(), len(config.network.devices)
    widths = per_device("devices.embedding", config.devices.embedding, M)
    plan = plan_of(config, len(records.y_train), M, named_parents(config, records.names, folder.path))
    run = ServerRun(ServerParts(config, records, widths, plan, noise or noise_of(config)), folder)
    try:
        run.restore()
    except BaseException as error:
        run.__exit__(type(error), error, error.__traceback__)
        raise
    if not run.begun:
        warn(run.plan)
    return run


async def align(alignment: AlignmentState) -> None:
    """Find and store the records that all share, in a thread; all devices must have sent their ids."""
    await aside(alignment.settle)


async def open_aside(config: Config, opened: Callable[[], ServerRun], stack: ExitStack) -> ServerRun:
    """The run that `opened` opens, in a thread; it is closed with the `stack`."""
    accelerator_of(config)  # torch's number of threads is set for each thread; here, for the event loop's
    return await aside(lambda: stack.enter_context(opened()))


async def tell_rows(peer: Peer, alignment: AlignmentState, mu_start: float) -> None:
    """Tell a device its rows, and the mu that its private start may cost."""
    rows, numbers = await asyncio.to_thread(alignment.rows, peer.m, mu_start)
    await peer.tell(rows)
    await peer.send_list(numbers)
