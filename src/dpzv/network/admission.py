"""Who may stay connected to a server: a stream lives no longer than the certificate it was opened with.

TLS looks at a certificate once, when a connection begins. Here it is looked at when a stream begins and every second
after that, against the clock and against the authority's list of revoked certificates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from cryptography import x509

from dpzv.errors import DpzvError, PeerError
from dpzv.network.keyfiles import Credentials, read_certificates, stamp_of
from dpzv.network.revocation import LIST, NOTHING, name_of, read_list

__all__ = ["Admission", "NotAdmitted"]

LOG = logging.getLogger("dpzv.server")
LOOK_SECONDS = 1.0
"""How often open streams are looked at."""


class NotAdmitted(PeerError):
    """A certificate that is revoked, expired or missing; the text is for the peer."""


class Admission:
    """The open streams of one listener, each with the certificate of its peer.

    A list that is there must be readable and signed when the server starts. If it is gone, damaged or older later on,
    the one that was read before stays in use, and the log says so. So nobody who was shut out gets in again that way.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._ca, self._path = credentials.ca, credentials.ca.with_name(LIST)
        self._open: dict[asyncio.Timeout, x509.Certificate] = {}
        self._revoked, self._stamp = NOTHING, stamp_of(self._path)
        if self._path.exists():
            self._revoked = read_list(self._path, read_certificates(self._ca))

    @asynccontextmanager
    async def admitted(self, shown: Iterable[bytes]) -> AsyncIterator[None]:
        """A block for a peer that has `shown` a certificate in PEM; `NotAdmitted` when it does not count (any more)."""
        pem = list(shown)
        if len(pem) != 1:
            raise NotAdmitted(f"a peer must show one certificate, it showed {len(pem)}; connect with one of its own.")
        certificate = x509.load_pem_x509_certificate(pem[0])
        self._look()
        if problem := self._problem(certificate):
            raise NotAdmitted(problem)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._open[limit] = certificate
                try:
                    yield
                finally:
                    self._open.pop(limit, None)
        except TimeoutError:
            if not limit.expired():
                raise
            raise NotAdmitted(self._problem(certificate) or "its certificate does not count any more") from None

    async def watch(self) -> None:
        """End streams whose certificate does not count any more; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look()
            for limit, certificate in list(self._open.items()):
                if self._problem(certificate):
                    del self._open[limit]  # a stream is told once, however long it takes to end
                    limit.reschedule(asyncio.get_running_loop().time())

    def _problem(self, certificate: x509.Certificate) -> str:
        """Why a certificate does not count now; empty if it does."""
        name, until = name_of(certificate.subject), certificate.not_valid_after_utc
        if certificate.serial_number in self._revoked.serials:
            return f"the certificate of {name!r} was revoked; ask whoever keeps the authority for a new one."
        if datetime.now(UTC) > until:
            return (
                f"the certificate of {name!r} expired on {until:%Y-%m-%d %H:%M} UTC; ask whoever keeps the authority "
                "to renew it."
            )
        return ""

    def _look(self) -> None:
        """Read the list again if its file has changed."""
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            found = read_list(self._path, read_certificates(self._ca))
        except DpzvError as error:
            LOG.error("%s Until then the list that was read before stays in use.", error)
            return
        if found.number < self._revoked.number:
            LOG.error(
                "%s is list %d of the authority, older than list %d, which stays in use; copy the newest again.",
                self._path,
                found.number,
                self._revoked.number,
            )
            return
        self._revoked = found
        LOG.info("%s was read: %d certificates are revoked.", self._path, len(found.serials))
