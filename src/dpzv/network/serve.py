"""The server at work, whoever starts it: its run folder, its metrics, and the form of a party's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from dpzv import config as configuration
from dpzv.errors import ConfigError
from dpzv.network.credentials import server_credentials
from dpzv.network.handshakes import refusals_logged
from dpzv.network.party_file import Party
from dpzv.network.server_party import ServerParty
from dpzv.network.status import read_status, serve_metrics
from dpzv.runtime.run_folder import RunFolder

__all__ = ["JsonLines", "open_folder", "serve"]


def open_folder(own: Party) -> RunFolder:
    """The server's run folder: new, or that of the same run."""
    rendered = configuration.render(own.config)
    if not (own.out / "config.toml").exists():
        return RunFolder.create(own.out, rendered)
    if (own.out / "config.toml").read_text() != rendered:
        raise ConfigError(f"{own.out} holds a run with another configuration; choose another `out`.")
    return RunFolder.existing(own.out)


async def serve(own: Party, folder: RunFolder, started: Callable[[ServerParty], None]) -> dict[str, Any] | None:
    """Train to the end and return the summary, or `None` if stopped before; `started` gets the host first of all.

    A finished run listens again only if a device has not heard of the end.
    """
    if folder.finished and all(device.told for device in read_status(folder.path).devices):
        return folder.read_summary()
    host = ServerParty(own.config, own.labels(), folder)
    started(host)
    metrics = await serve_metrics(own.metrics, host.status) if own.metrics else None
    try:
        with refusals_logged():
            return await host.run(own.listen, server_credentials(own.credentials))
    finally:
        if metrics is not None:
            metrics.close()


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, who and what."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
