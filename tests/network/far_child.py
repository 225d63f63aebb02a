"""A party in a process and a network of its own: ``python far_child.py FOLDER server|NAME HOST:PORT SETTING...``."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
from pathlib import Path

from federation import NAMES, Parties, config_of

from dpzv.network.grpc_transport import GrpcConnector, GrpcListener

PR_SET_PDEATHSIG = 1


async def main(folder: Path, name: str, address: str, settings: list[str]) -> int:
    """Run one party until its run is finished; 0 then."""
    config, parties = config_of(*settings), Parties(folder)
    if name == "server":
        server = parties.server(config, folder / "out" / "server")
        summary = await server.run(GrpcListener(address, parties.credentials("server")))
        return 0 if summary is not None else 3
    device = parties.device(config, NAMES.index(name) + 1, folder / "out" / name)
    await device.run(GrpcConnector(address, parties.credentials(name), "server"))
    return 0


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # so that no namespace outlasts tests that are killed
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])))
