"""Starts the server for its operator. Whatever can be refused without the devices is refused before it listens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpzv.errors import ConfigError, DataError
from dpzv.network.beginning import early_plan
from dpzv.network.grpc_log import refusals_logged
from dpzv.network.party import Party
from dpzv.network.server_party import ServerParty
from dpzv.network.status import read_status, serve_metrics
from dpzv.runtime.run_folder import RunFolder

__all__ = ["serve"]


async def serve(own: Party, folder: RunFolder, started: Callable[[ServerParty], None]) -> dict[str, Any] | None:
    """Train to the end and return the summary, or `None` if stopped before; `started` is given the server first.

    The server of a finished run listens again only if a device has not heard of its end.
    """
    if folder.finished and _all_told(folder.path):
        return folder.read_summary()
    with folder.held():
        labels = own.labels()
        early_plan(own.config, labels, folder)
        server = ServerParty(own.config, labels, folder)
        started(server)
        metrics = await serve_metrics(own.file.metrics, server.status) if own.file.metrics else None
        try:
            with refusals_logged():
                return await server.run(own.listener())
        finally:
            if metrics is not None:
                metrics.close()


def _all_told(path: Path) -> bool:
    """Whether every device is known to have heard of the run's end; not if the status is lost or damaged."""
    try:
        return all(device.told for device in read_status(path).devices)
    except (ConfigError, DataError):
        return False
