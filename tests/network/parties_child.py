"""A party in a process of its own, to be killed: ``python parties_child.py FOLDER server|NAME PORT SETTING...``."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

from federation import NAMES, Parties, config_of

from dpzv.network.credentials import channel_credentials, server_credentials


async def main(folder: Path, name: str, port: int, settings: list[str]) -> int:
    """Run one party until its run is finished; 0 then, 3 if it was stopped."""
    config = config_of(*settings)
    parties = Parties(folder)
    loop = asyncio.get_running_loop()
    if name == "server":
        host = parties.host(config, folder / "out" / "server")
        loop.add_signal_handler(signal.SIGTERM, host.stop)
        summary = await host.run(f"127.0.0.1:{port}", server_credentials(parties.credentials("server")))
        return 0 if summary is not None else 3
    guest = parties.guest(config, NAMES.index(name) + 1, folder / "out" / name)
    loop.add_signal_handler(signal.SIGTERM, guest.stop)
    await guest.run(f"127.0.0.1:{port}", lambda: channel_credentials(parties.credentials(name)), server="server")
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])))
