"""A run begins at the server: devices send their ids, the shared records are found, the run is opened.

With millions of records each of these takes long, so it is done beside the event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from dpzv.config import Config
from dpzv.network import wire
from dpzv.network.alignment_state import AlignmentState, digest_of
from dpzv.network.arrivals import open_run
from dpzv.network.aside import aside
from dpzv.network.greeting import hashed_ids
from dpzv.network.transport import Peer
from dpzv.privacy.noise import NoiseSource
from dpzv.runtime.accelerator import accelerator_of
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.server_run import ServerRun

__all__ = ["align", "hear_ids", "open_aside", "tell_rows"]


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


async def align(alignment: AlignmentState) -> None:
    """Find and store the records that all share; all devices must have sent their ids."""
    await aside(alignment.settle)


async def open_aside(
    config: Config, alignment: AlignmentState, folder: RunFolder, noise: NoiseSource, stack: ExitStack
) -> ServerRun:
    """The server's run over the aligned records, which ends with the `stack`."""
    accelerator_of(config)  # torch keeps the number of its threads for every thread by itself
    return await aside(lambda: stack.enter_context(open_run(config, alignment, folder, noise)))


async def tell_rows(peer: Peer, alignment: AlignmentState, mu_start: float) -> None:
    """Tell a device its rows, and the mu that its private start may cost."""
    rows, numbers = await asyncio.to_thread(alignment.rows, peer.m, mu_start)
    await peer.tell(rows)
    await peer.send_list(numbers)
