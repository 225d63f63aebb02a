"""What an authority remembers: the certificates it has issued, and the list of those that it has revoked.

issued.pem   in the authority's folder alone: every certificate it ever issued, the last one at the end
ca.crl       the list, signed by the authority; a server reads it beside its ca.crt
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from dpzv.durable import EVERYBODY, write_atomically
from dpzv.errors import DataError
from dpzv.network.identity import CLOCK_SKEW, Authority

__all__ = ["LIST", "NOTHING", "Revoked", "issued_to", "name_of", "read_list", "record", "write_list"]

LIST, REGISTER = "ca.crl", "issued.pem"


@dataclass(frozen=True, slots=True)
class Revoked:
    """A list of revoked certificates: how many lists the authority has made with it, and serial numbers."""

    number: int
    serials: frozenset[int]


NOTHING = Revoked(0, frozenset())
"""The list of an authority that has revoked nothing."""


def record(ca: Path, certificate: x509.Certificate) -> None:
    """Remember a certificate before anybody gets it: one that the authority forgot could never be revoked."""
    path = ca / REGISTER
    with _register(path):
        before = path.read_bytes() if path.exists() else b""
    write_atomically(path, before + certificate.public_bytes(serialization.Encoding.PEM))


def issued_to(ca: Path, name: str) -> list[x509.Certificate]:
    """Every certificate that the authority in folder `ca` has issued to the party called `name`."""
    path = ca / REGISTER
    if not path.exists():
        return []
    with _register(path):
        known = x509.load_pem_x509_certificates(path.read_bytes())
    return [certificate for certificate in known if name_of(certificate.subject) == name]


@contextmanager
def _register(path: Path) -> Iterator[None]:
    """Say what is wrong with the authority's list of certificates if it cannot be read."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise DataError(f"{path} must hold certificates in PEM ({error}); put back the authority's own file.") from None


def write_list(ca: Path, authority: Authority, revoked: Revoked) -> None:
    """Sign a list and put it into the authority's folder."""
    now, until = datetime.now(UTC), authority.certificate.not_valid_after_utc
    builder = x509.CertificateRevocationListBuilder(authority.certificate.subject, now - CLOCK_SKEW, until)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(x509.CRLNumber(revoked.number), critical=False)
    builder = builder.add_extension(signer, critical=False)
    for serial in sorted(revoked.serials):
        entry = x509.RevokedCertificateBuilder(serial, now)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(authority.key, hashes.SHA256())
    write_atomically(ca / LIST, signed.public_bytes(serialization.Encoding.PEM), EVERYBODY)


def read_list(path: Path, authorities: Sequence[x509.Certificate]) -> Revoked:
    """The list in `path`, which one of `authorities` must have signed."""
    again = f"copy {LIST} again from the folder of the authority."
    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except OSError as error:
        raise DataError(f"{path} could not be read ({error.strerror or error}); {again}") from None
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
        raise DataError(f"{path} must hold a list of revoked certificates in PEM, it does not; {again}") from None
    if not any(_signed(found, authority) for authority in authorities):
        raise DataError(f"{path} is not signed by the authority in ca.crt; {again}")
    return Revoked(number, frozenset(entry.serial_number for entry in found))


def name_of(name: x509.Name) -> str:
    """The common name in a certificate's subject or issuer; empty if there is none."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _signed(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except TypeError:  # keys of this kind cannot sign
        return False
