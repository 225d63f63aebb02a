"""Makes a federation's authority and a certificate for each party, in memory; `keyfiles` writes and reads the files."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpzv.errors import ConfigError
from dpzv.validate import whole

__all__ = ["LOCAL_HOSTS", "Authority", "issue_certificate", "make_authority", "new_key", "party_name"]

LOCAL_HOSTS = ("localhost", "127.0.0.1")
CLOCK_SKEW = timedelta(minutes=5)
MOST_DAYS = 36500
# the files of a party with one of these names would overwrite the authority's own
TAKEN = ("ca", "alignment")
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
KEY_USAGES = (
    "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign "
    "encipher_only decipher_only"
).split()


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: its own certificate and the key it signs with."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def party_name(name: str) -> str:
    """Return `name` if a party can be called so, else refuse it: 1 to 63 letters, digits, - and _."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
        raise ConfigError(
            f"a party's name must be 1 to 63 letters, digits, - and _, the first a letter or digit, got {name!r}; "
            "choose another name."
        )
    if name.lower() in TAKEN:
        raise ConfigError(f"the name '{name}' is taken by the authority's own files; choose another name.")
    return name


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(days: int, *, now: datetime | None = None) -> Authority:
    """A new authority that is valid for `days` from `now` (with 5 minutes before it for clocks that differ)."""
    key = new_key()
    # each authority has a name of its own, so that the certificates of two federations can be told apart
    subject = _subject(f"dpzv authority {secrets.token_hex(4)}")
    builder = _builder(subject, subject, key.public_key(), days, now or datetime.now(UTC))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def issue_certificate(
    authority: Authority,
    name: str,
    hosts: Sequence[str],
    public_key: ec.EllipticCurvePublicKey,
    days: int,
    *,
    now: datetime | None = None,
) -> x509.Certificate:
    """The certificate of party `name`, for servers and clients, which is reached as `name` and as each of `hosts`.

    It is valid for `days` from `now`; raises `ConfigError` if the authority expires earlier.
    """
    now = now or datetime.now(UTC)
    subject, issuer = _subject(party_name(name)), authority.certificate.subject
    builder = _builder(subject, issuer, public_key, days, now)
    left = max((authority.certificate.not_valid_after_utc - now) // timedelta(days=1), 0)
    if days > left:
        raise ConfigError(
            f"a certificate may not outlive its authority, which has {left} whole days left, got --days {days}; "
            "give fewer, or make a new authority with `dpzv keys init`."
        )
    names = [_general_name(host) for host in dict.fromkeys([name, *hosts])]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    for critical in (x509.BasicConstraints(ca=False, path_length=None), _usage("digital_signature")):
        builder = builder.add_extension(critical, critical=True)
    for extension in (x509.ExtendedKeyUsage(purposes), x509.SubjectAlternativeName(names), signer):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, now: datetime
) -> x509.CertificateBuilder:
    if whole("--days", days, 1) > MOST_DAYS:
        raise ConfigError(f"--days must be at most {MOST_DAYS}, got {days}; give fewer.")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in KEY_USAGES})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not re.fullmatch(rf"{LABEL}(?:\.{LABEL})*", host) or re.fullmatch(r"[\d.]+\.\d+", host):
        raise ConfigError(f"--host must be a host name or an IP address without a port, got {host!r}; correct it.")
    return x509.DNSName(host)
