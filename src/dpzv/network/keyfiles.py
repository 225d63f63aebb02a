"""The files that say who a party is, written and read.

    ca.crt  ca.key  alignment.key  issued.pem       the authority's folder; ca.key and issued.pem never leave it
    NAME.crt  NAME.key  ca.crt  alignment.key       the folder of party NAME

With them is `ca.crl`, the list of revoked certificates, once there is one.

Private keys and the alignment key are created with mode 0600 and never printed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from dpzv.durable import EVERYBODY, holding, refuse_shared, write_atomically
from dpzv.errors import ConfigError, DataError
from dpzv.network.identity import LOCAL_HOSTS, Authority, issue_certificate, make_authority, new_key, party_name
from dpzv.network.revocation import LIST, NOTHING, Revoked, issued_to, name_of, read_list, record, write_list

__all__ = [
    "Credentials",
    "Description",
    "create_authority",
    "describe",
    "hosts_of",
    "issue_party",
    "load_authority",
    "own_name",
    "read_alignment_key",
    "read_certificates",
    "read_party_keys",
    "renewal",
    "revoke_party",
    "stamp_of",
]

ALIGNMENT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where a party's certificate, its private key and the authority's certificate are."""

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class PartyKeys:
    """A certificate chain with its key and the authority it is checked with, in PEM; the key is never shown."""

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    ca: bytes = field(repr=False)
    name: str
    until: datetime


class Description(msgspec.Struct, frozen=True):
    """What a certificate says; `problems` is empty when a peer with the same authority would accept it now."""

    file: str
    name: str
    issuer: str
    authority: bool
    hosts: list[str]
    valid_from: datetime
    valid_until: datetime
    days_left: float
    sha256: str
    problems: list[str]


def create_authority(folder: Path, days: int, earlier: Path | None = None) -> Authority:
    """Make a new authority in `folder`; refuses a folder that has one already.

    With the folder of an `earlier` authority its alignment key is taken over, so that runs know their records again;
    else a new one is made.
    """
    alignment = (
        secrets.token_bytes(ALIGNMENT_BYTES) if earlier is None else read_alignment_key(earlier / "alignment.key")
    )
    for name in ("ca.crt", "ca.key", "alignment.key"):
        if (folder / name).exists():
            raise ConfigError(f"{folder} already holds an authority ({name}); choose another --out.")
    authority = make_authority(days)
    write_atomically(folder / "ca.key", _pem(authority.key))
    write_atomically(folder / "alignment.key", alignment.hex().encode() + b"\n")
    write_atomically(folder / "ca.crt", authority.certificate.public_bytes(serialization.Encoding.PEM), EVERYBODY)
    return authority


def load_authority(folder: Path) -> Authority:
    """The authority of `create_authority` in `folder`; refuses one that has expired or whose two files do not fit."""
    certificate, key = read_certificates(folder / "ca.crt")[0], _key(folder / "ca.key")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _same_key(certificate, key):
        raise DataError(
            f"{folder / 'ca.key'} is not the key of {folder / 'ca.crt'}; put back both files of one `dpzv keys init`."
        )
    if problem := _validity_problem(certificate):
        raise ConfigError(f"{folder / 'ca.crt'} {problem}; make a new authority with `dpzv keys init`.")
    return Authority(certificate, key)


def issue_party(
    ca: Path, name: str, out: Path, hosts: Sequence[str] | None, days: int, *, renew: bool = False
) -> x509.Certificate:
    """Write the four files of party `name` to `out`; `ca` is the authority's folder.

    A renewal keeps the key, and the hosts unless new ones are given. So only one file changes, atomically, and a party
    that reads the folder meanwhile finds a certificate and a key that fit together.
    """
    party_name(name)
    authority, alignment = load_authority(ca), ca / "alignment.key"
    read_alignment_key(alignment)
    certificate_path, key_path = out / f"{name}.crt", out / f"{name}.key"
    if renew and not key_path.exists():
        raise ConfigError(f"a renewal needs the party's key {key_path}, which does not exist; issue without --renew.")
    for path in (certificate_path, key_path):
        if path.exists() and not renew:
            raise ConfigError(f"{path} exists already; add --renew for a new certificate, or choose another --out.")
    for source in (ca / "ca.crt", alignment):
        copy = out / source.name
        if copy.exists() and _read(copy) != _read(source):
            raise ConfigError(f"{copy} is of another authority than {ca}; choose another --out.")
    if renew and hosts is None and certificate_path.exists():
        hosts = [host for host in hosts_of(read_certificates(certificate_path)[0]) if host != name]
    key = _key(key_path) if renew else new_key()
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{key_path} is not an elliptic-curve key; issue to another --out without --renew.")
    with holding(ca, "the folder of an authority"):
        _refuse_revoked_key(ca, name, key)
        certificate = issue_certificate(
            authority, name, LOCAL_HOSTS if hosts is None else hosts, key.public_key(), days
        )
        record(ca, certificate)
    if not renew:
        write_atomically(key_path, _pem(key))
    if not (out / "alignment.key").exists():
        write_atomically(out / "alignment.key", _read(alignment))
    for public in ("ca.crt", LIST):
        if (ca / public).exists() and not ((out / public).exists() and _read(out / public) == _read(ca / public)):
            write_atomically(out / public, _read(ca / public), EVERYBODY)
    write_atomically(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), EVERYBODY)
    return certificate


def revoke_party(ca: Path, name: str) -> int:
    """Put every certificate that was ever issued to `name` on the authority's list; returns how many are new there."""
    authority = load_authority(ca)
    with holding(ca, "the folder of an authority"):
        mine, before = {found.serial_number for found in issued_to(ca, name)}, _revoked(ca)
        if not mine:
            raise ConfigError(f"the authority in {ca} never issued a certificate to {name!r}; give a party's name.")
        fresh = mine - before.serials
        if fresh:
            write_list(ca, authority, Revoked(before.number + 1, before.serials | fresh))
        return len(fresh)


def _revoked(folder: Path) -> Revoked:
    """The list beside the `ca.crt` of a folder."""
    path = folder / LIST
    return read_list(path, read_certificates(folder / "ca.crt")) if path.exists() else NOTHING


def _refuse_revoked_key(ca: Path, name: str, key: ec.EllipticCurvePrivateKey) -> None:
    """Refuse a key whose certificate was revoked: it may be in other hands, so it gets no new certificate."""
    gone = _revoked(ca).serials
    if any(found.serial_number in gone and _same_key(found, key) for found in issued_to(ca, name)):
        raise ConfigError(
            f"the certificate of '{name}' was revoked, so its key gets no new one; issue a new key to another --out, "
            "without --renew."
        )


def describe(path: Path) -> Description:
    """What the certificate in `path` says, checked against the clock and against `ca.crt` in the same folder."""
    certificate, beside = read_certificates(path)[0], path.parent / "ca.crt"
    problem = _validity_problem(certificate)
    problems = [problem] if problem else []
    if not beside.exists():
        problems.append("has no ca.crt beside it to be checked against")
    elif not any(_issued_by(certificate, ca) for ca in read_certificates(beside)):
        problems.append(f"does not belong to the authority beside it, {beside}")
    elif certificate.serial_number in _revoked(path.parent).serials:
        problems.append(f"was revoked, says {path.parent / LIST}")
    return Description(
        file=str(path),
        name=name_of(certificate.subject),
        issuer=name_of(certificate.issuer),
        authority=_issued_by(certificate, certificate),
        hosts=hosts_of(certificate),
        valid_from=certificate.not_valid_before_utc,
        valid_until=certificate.not_valid_after_utc,
        days_left=(certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1),
        sha256=certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        problems=problems,
    )


def own_name(credentials: Credentials) -> str:
    """The party's own name, from its certificate."""
    return name_of(read_certificates(credentials.certificate)[0].subject)


def read_party_keys(own: Credentials) -> PartyKeys:
    """Read the three files; what a peer would refuse anyway is refused here, with a better reason."""
    chain, authorities = read_certificates(own.certificate), read_certificates(own.ca)
    certificate, name = chain[0], name_of(chain[0].subject)
    if not _same_key(certificate, _key(own.key)):
        raise DataError(f"{own.key} is not the key of {own.certificate}; give the two files of one `dpzv keys issue`.")
    if not any(_issued_by(certificate, ca) for ca in [*chain[1:], *authorities]):
        raise DataError(
            f"{own.certificate} was not issued by the authority in {own.ca}; give the ca.crt that came with it."
        )
    if problem := _validity_problem(certificate):
        raise ConfigError(renewal(own, name, problem))
    if all(_validity_problem(ca) for ca in authorities):
        raise ConfigError(
            f"{own.ca} {_validity_problem(authorities[0])}; make a new authority with `dpzv keys init` and issue all "
            "certificates again."
        )
    until = certificate.not_valid_after_utc
    return PartyKeys(_read(own.certificate), _read(own.key), _read(own.ca), name, until)


def _same_key(certificate: x509.Certificate, key: PrivateKeyTypes) -> bool:
    """Whether the certificate was made for this private key."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def _issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether `issuer` signed `certificate`."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _validity_problem(certificate: x509.Certificate) -> str | None:
    """What is wrong with the certificate's dates now, as the end of a sentence, or `None`."""
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        return f"expired on {end:%Y-%m-%d %H:%M} UTC"
    if now < start:
        return f"is not valid before {start:%Y-%m-%d %H:%M} UTC, and the clock here says {now:%Y-%m-%d %H:%M}"
    return None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The host names and then the IP addresses a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def renewal(credentials: Credentials, name: str, problem: str) -> str:
    """The sentence that says how a certificate with this problem is renewed."""
    return (
        f"{credentials.certificate} {problem}; whoever keeps the authority renews it with "
        f"`dpzv keys issue {name} --ca DIR --out {credentials.certificate.parent} --renew`."
    )


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates in a PEM file, at least one."""
    data = _read(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        held = "a private key" if b"PRIVATE KEY-----" in data else "something else"
        raise DataError(f"{path} must hold a certificate in PEM, it holds {held}; give the .crt file.") from None


def _key(path: Path) -> PrivateKeyTypes:
    """The private key in an unencrypted PEM file."""
    data = _read(path)
    refuse_shared(path)
    try:
        return serialization.load_pem_private_key(data, password=None)
    except TypeError:
        raise DataError(f"{path} is encrypted with a password; give the key without one, with mode 0600.") from None
    except ValueError:
        raise DataError(f"{path} must hold a private key in PEM, it does not; give the .key file.") from None


def read_alignment_key(path: Path) -> bytes:
    """The 32 secret bytes with which the parties of one federation hash record ids."""
    data = _read(path)
    refuse_shared(path)
    try:
        key = bytes.fromhex(data.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != ALIGNMENT_BYTES:
        raise DataError(
            f"{path} must hold {2 * ALIGNMENT_BYTES} hexadecimal digits, it does not; copy it again from the authority."
        )
    return key


def _read(path: Path) -> bytes:
    """The bytes of a file; a `DataError` says why it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing; make it with `dpzv keys init` and `dpzv keys issue`.") from None
    except OSError as error:
        raise DataError(f"{path} could not be read ({error.strerror or error}); give a readable file.") from error


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def stamp_of(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced, rewritten or made readable; empty if it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
