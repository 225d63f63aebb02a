"""The report page on this machine's own address while a run goes on, for whoever knows its secret address."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dpzv.errors import DpzvError, PeerError
from dpzv.report.page import page
from dpzv.report.run_records import folders_at, read_runs

__all__ = ["PageServer"]

RENEW = 2.0
"""Seconds after which a page asks for a newer one."""


class PageServer(ThreadingHTTPServer):
    """Serves the page of all runs at and below `places`, made anew for every request, on 127.0.0.1 only.

    The files of a run are for their owner alone, and other users of this machine reach its ports. So the address holds
    a secret, and every other address is answered with 404.
    """

    daemon_threads = True

    def __init__(self, places: Sequence[Path], port: int = 0) -> None:
        folders_at(places)  # a folder that does not exist is refused before anybody asks
        self.places, self.secret = list(places), secrets.token_urlsafe(16)
        try:
            super().__init__(("127.0.0.1", port), _Request)
        except OSError as error:
            raise PeerError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); choose another --port."
            ) from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/{self.secret}/"


class _Request(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """The page, or a sentence that says why there is none."""
        if not hmac.compare_digest(self.path.encode(), f"/{self.server.secret}/".encode()):
            self._answer(404, "text/plain", "There is no such page; use the whole address that dpzv watch prints.\n")
            return
        try:
            self._answer(200, "text/html", page(read_runs(self.server.places), RENEW))
        except DpzvError as error:
            self._answer(503, "text/plain", f"{error}\n")

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: the page asks every few seconds."""
