"""TLS handshakes without a certificate, one after the other, as fast as they are refused."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence

from .http2 import arguments

__all__ = ["knock"]


def knock(port: int, number: int) -> int:
    """Try so many handshakes; how many ended without an answer to what was said after it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    refused = 0
    for _ in range(number):
        try:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname="server") as link,
            ):
                refused += link.recv(1) == b""
        except OSError:
            refused += 1
    return refused


def main(argv: Sequence[str] | None = None) -> None:
    told = arguments(__doc__ or "", certified=False).parse_args(argv)
    deadline = time.monotonic() + told.seconds
    while time.monotonic() < deadline:
        knock(told.port, 20)


if __name__ == "__main__":
    main()
