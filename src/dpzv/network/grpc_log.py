"""Reads what gRPC writes on standard error: refused handshakes become lines of the log, and floods are cut short."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dpzv.network.logs import LimitedLog

__all__ = ["refusals_logged"]

LOG = logging.getLogger("dpzv.server")

# how gRPC begins a line, such as "E1116 12:08:12.441257   15001 call.cc:358] "
_OF_GRPC = re.compile(rb"[IWEF]\d{4} [\d:.]+ +\d+ ([\w.]+:\d+)\] (.*)")
_HANDSHAKE_FAILED = re.compile(
    rb"ssl_transport_security\S* Handshake failed with error .*OPENSSL_internal:(\w+)(?:: (.*))?"
)
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "unable to get local issuer certificate": "its certificate is of another authority",
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet",
}


def _handshake_refusal(line: bytes) -> str | None:
    """What a line that gRPC writes says about a refused handshake, or `None` if it is about something else."""
    if (found := _HANDSHAKE_FAILED.search(line)) is None:
        return None
    name, detail = found[1].decode(), (found[2] or b"").decode(errors="replace").strip()
    reason = _REASONS.get(name) or _REASONS.get(detail) or f"{name.lower().replace('_', ' ')}, {detail}"
    return f"a connection was refused in its TLS handshake: {reason}; `dpzv keys show` tells what a certificate says."


@contextmanager
def refusals_logged() -> Iterator[None]:
    """Log what gRPC reports on standard error alone, a few lines a minute; other lines stay on standard error.

    The log may itself go to standard error, so the event loop writes it, and not the thread, which must keep reading.
    """
    loop, before, log = asyncio.get_running_loop(), os.dup(2), LimitedLog(LOG)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def read() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if told := _handshake_refusal(line):
                    loop.call_soon_threadsafe(log.write, logging.WARNING, told, told)
                elif found := _OF_GRPC.match(line):
                    where, what = (part.decode(errors="replace") for part in found.groups())
                    loop.call_soon_threadsafe(log.write, logging.WARNING, f"gRPC's {where}", f"gRPC says: {what}")
                else:
                    os.write(before, line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.dup2(before, 2)  # the pipe has no writer now, so the reader comes to its end
        reader.join(5)
        os.close(before)
