"""Refused TLS handshakes as sentences in our log: gRPC ends them itself and tells of them on standard error alone."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["refusals_logged", "sentence_of"]

LOG = logging.getLogger("dpzv.server")
_FAILED = re.compile(rb"ssl_transport_security\S* Handshake failed with error .*OPENSSL_internal:(\w+)(?:: (.*))?")
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "unable to get local issuer certificate": "its certificate is of another authority",
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet",
}


def sentence_of(line: bytes) -> str | None:
    """What one line of gRPC's says about a refused handshake, or `None` if it is about something else."""
    found = _FAILED.search(line)
    if found is None:
        return None
    name, detail = found[1].decode(), (found[2] or b"").decode(errors="replace").strip()
    reason = _REASONS.get(name) or _REASONS.get(detail) or f"{name.lower().replace('_', ' ')}, {detail}"
    return f"a connection was refused in its TLS handshake: {reason}; `dpzv keys show` tells what a certificate says."


@contextmanager
def refusals_logged() -> Iterator[None]:
    """Read this process's standard error meanwhile: refused handshakes go to the log, all else where it went before.

    The log itself may go there too, so the loop writes it, never the thread that must keep reading.
    """
    loop, before = asyncio.get_running_loop(), os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def read() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                told = sentence_of(line)
                if told is None:
                    os.write(before, line)
                else:
                    loop.call_soon_threadsafe(LOG.warning, "%s", told)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.dup2(before, 2)  # the pipe has no writer now, so the reader comes to its end
        reader.join(5)
        os.close(before)
