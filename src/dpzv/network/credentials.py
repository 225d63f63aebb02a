"""Mutual TLS from a party's files: both sides show a certificate of the federation's authority, or there is no link."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dpzv.errors import ConfigError, DataError, DpzvError, PeerError
from dpzv.network.identity import issued_by, name_of, party_name, same_key, validity_problem
from dpzv.network.keyfiles import read_bytes, read_certificates, read_key

__all__ = ["Credentials", "channel_credentials", "own_name", "peer_name", "peer_option", "server_credentials"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where a party's certificate, its private key and the authority's certificate are."""

    certificate: Path
    key: Path
    ca: Path


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """What one listener listens with: clients must show a valid certificate of the same authority.

    The files are looked at whenever a client connects: a renewed certificate is used from the next connection on.
    Files that do not fit together then (half copied, expired) are not taken; the log says why.
    """
    fetcher = _Fetcher(credentials)
    return grpc.dynamic_ssl_server_credentials(
        fetcher.configuration(), fetcher.renewed, require_client_authentication=True
    )


def channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """What a client connects with, read from the files now.

    A channel keeps them for its own reconnects: make a new channel at each connect, to use a renewed certificate.
    """
    pair = _read(credentials)
    return grpc.ssl_channel_credentials(
        root_certificates=pair.ca, private_key=pair.key, certificate_chain=pair.certificate
    )


def peer_option(name: str) -> tuple[str, str]:
    """The channel option that demands the certificate of party `name` from the server, whatever its address is.

    Without it the address decides, and any party whose certificate is for that address could pose as the server.
    """
    return ("grpc.ssl_target_name_override", party_name(name))


def own_name(credentials: Credentials) -> str:
    """The party's own name, from its certificate."""
    return name_of(read_certificates(credentials.certificate)[0].subject)


def peer_name(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The name in the client's certificate, which the handshake has verified; refuses a call without one."""
    found: Iterable[bytes] = context.auth_context().get("x509_common_name", ())
    names = [name.decode(errors="replace") for name in found]
    if len(names) != 1:
        raise PeerError(
            f"the peer at {context.peer()} must show a certificate with one name, it has {len(names)}; "
            "connect with the files of `dpzv keys issue`."
        )
    try:
        return party_name(names[0])
    except ConfigError as error:
        raise PeerError(f"the certificate of the peer at {context.peer()} is not a party's: {error}") from None


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate chain with its key and the authority it is checked with, in PEM; the key is never shown."""

    certificate: bytes
    key: bytes
    ca: bytes
    name: str
    until: datetime

    def __repr__(self) -> str:
        return f"_Pair(name={self.name!r}, until={self.until})"


class _Fetcher:
    """What gRPC asks at every new connection, from a thread of its own: is there another certificate now?"""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._used = self._stamps()  # before reading, so that a change while reading is seen the next time
        self._pair = _read(credentials)
        self._told: object = None
        self._lock = threading.Lock()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """The pair in use, as gRPC wants it."""
        pair = self._pair
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], root_certificates=pair.ca)

    def renewed(self) -> Any:
        """The new configuration if the files changed and fit together, else None: go on with the old one."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._used:
                try:
                    self._pair = _read(self._credentials)
                except DpzvError as error:
                    self._tell(stamps, f"{error} Until then the certificate read before stays in use.")
                else:
                    self._used = stamps
                    log.info("%s was renewed, valid until %s.", self._credentials.certificate, self._pair.until)
                    return self.configuration()
            elif datetime.now(UTC) > self._pair.until:
                expired = f"expired on {self._pair.until:%Y-%m-%d %H:%M} UTC"
                self._tell(self._pair.until, _renew(self._credentials, self._pair.name, expired))
            return None

    def _tell(self, what: object, sentence: str) -> None:
        """Say it once, not at every connection."""
        if self._told != what:
            self._told = what
            log.error("%s", sentence)

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            _stamp(path) for path in (self._credentials.certificate, self._credentials.key, self._credentials.ca)
        )


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced, rewritten or made readable."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _read(credentials: Credentials) -> _Pair:
    """Read the three files, and refuse what a peer would refuse anyway, with a better reason."""
    chain, authorities = read_certificates(credentials.certificate), read_certificates(credentials.ca)
    certificate = chain[0]
    if not same_key(certificate, read_key(credentials.key)):
        raise DataError(
            f"{credentials.key} is not the key of {credentials.certificate}; give the two files of one "
            "`dpzv keys issue`."
        )
    if not any(issued_by(certificate, ca) for ca in [*chain[1:], *authorities]):
        raise DataError(
            f"{credentials.certificate} was not issued by the authority in {credentials.ca}; "
            "give the ca.crt that came with it."
        )
    problem = validity_problem(certificate)
    if problem:
        raise ConfigError(_renew(credentials, name_of(certificate.subject), problem))
    if all(validity_problem(ca) for ca in authorities):
        raise ConfigError(
            f"{credentials.ca} {validity_problem(authorities[0])}; make a new authority with `dpzv keys init` "
            "and issue all certificates again."
        )
    return _Pair(
        read_bytes(credentials.certificate),
        read_bytes(credentials.key),
        read_bytes(credentials.ca),
        name_of(certificate.subject),
        certificate.not_valid_after_utc,
    )


def _renew(credentials: Credentials, name: str, problem: str) -> str:
    return (
        f"{credentials.certificate} {problem}; whoever keeps the authority renews it with "
        f"`dpzv keys issue {name} --ca DIR --out {credentials.certificate.parent} --renew`."
    )
