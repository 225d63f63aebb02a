"""Who may talk to whom, over real gRPC links on the loopback; and what the files of a party promise."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpzv.errors import ConfigError, DataError, DpzvError, PeerError
from dpzv.network.grpc_transport import GrpcStream, channel_credentials, peer_option, server_credentials
from dpzv.network.identity import LOCAL_HOSTS, Authority, issue_certificate, make_authority, new_key, party_name
from dpzv.network.keyfiles import (
    Credentials,
    create_authority,
    describe,
    hosts_of,
    issue_party,
    load_authority,
    own_name,
    read_alignment_key,
)
from dpzv.network.revocation import REGISTER

METHOD = "/dpzv.test/Who"
NOW = datetime.now(UTC).replace(microsecond=0)  # certificates count whole seconds
Pem = tuple[bytes, bytes]  # key, certificate chain


def files(folder: Path, name: str) -> Credentials:
    """The files of a party in a folder of `issue_party`."""
    return Credentials(folder / f"{name}.crt", folder / f"{name}.key", folder / "ca.crt")


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """An authority, a server and two devices, each in a folder of its own."""
    create_authority(tmp_path / "ca", 100)
    for name in ("server", "device-1", "device_2"):
        issue_party(tmp_path / "ca", name, tmp_path / name, None, 90)
    return tmp_path


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def made(authority: Authority, name: str, *, now: datetime = NOW, days: int = 1) -> Pem:
    """A new key and certificate in memory."""
    key = new_key()
    return pem_key(key), pem(issue_certificate(authority, name, LOCAL_HOSTS, key.public_key(), days, now=now))


async def who(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """Answer with the caller's name, or with the sentence that refuses it."""
    try:
        return GrpcStream(context).peer_name.encode()
    except PeerError as error:
        return f"refused: {error}".encode()


@asynccontextmanager
async def serving(credentials: grpc.ServerCredentials | None) -> AsyncIterator[int]:
    """A server of raw bytes on a port of the loopback."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(who)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("dpzv.test", {"Who": handler}),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def ask(port: int, credentials: grpc.ChannelCredentials | None, *options: tuple[str, Any]) -> str:
    """Connect anew and ask for our name; the status, "unavailable", when the link is refused."""
    # channels with equal arguments may share a connection, and each call here must make its own
    settings = [*options, ("grpc.use_local_subchannel_pool", 1)]
    target = f"127.0.0.1:{port}"
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, settings)
    else:
        channel = grpc.aio.secure_channel(target, credentials, settings)
    async with channel:
        try:
            answer: bytes = await channel.unary_unary(METHOD)(b"", timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code().name.lower()
        return answer.decode()


def test_a_party_is_who_its_certificate_says(federation: Path) -> None:
    async def session() -> None:
        async with serving(server_credentials(files(federation / "server", "server"))) as port:
            for name in ("device-1", "device_2", "server"):
                mine = files(federation / name, name)
                assert own_name(mine) == name
                assert await ask(port, channel_credentials(mine), peer_option("server")) == name

    asyncio.run(session())


def test_the_server_refuses_whom_its_authority_does_not_vouch_for(federation: Path) -> None:
    ours, other = load_authority(federation / "ca"), make_authority(10)
    root = (federation / "ca" / "ca.crt").read_bytes()
    device_key, device = new_key(), files(federation / "device-1", "device-1")
    # device-1 signs a certificate for device_2 with the key of its own certificate
    own = x509.load_pem_x509_certificate(device.certificate.read_bytes())
    signer = serialization.load_pem_private_key(device.key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    forged = issue_certificate(Authority(own, signer), "device_2", LOCAL_HOSTS, device_key.public_key(), 1)
    refused: dict[str, Pem | None] = {
        "no certificate": None,
        "another authority's": made(other, "device-1"),
        "expired": made(ours, "device-1", now=NOW - timedelta(days=3)),
        "not yet valid": made(ours, "device-1", now=NOW + timedelta(hours=1)),
        "signed by a device": (pem_key(device_key), pem(forged, own)),
    }
    accepted = {
        "fresh": made(ours, "device-1"),
        "clock 4 minutes ahead": made(ours, "x", now=NOW + timedelta(minutes=4)),
    }

    async def session() -> None:
        async with serving(server_credentials(files(federation / "server", "server"))) as port:
            for pair in accepted.values():
                assert await ask(port, grpc.ssl_channel_credentials(root, *pair)) in {"device-1", "x"}
            for why, bad in refused.items():
                credentials = grpc.ssl_channel_credentials(root, *(bad or (None, None)))
                assert await ask(port, credentials) == "unavailable", why
            assert await ask(port, None) == "unavailable"
            # and it still serves
            assert await ask(port, channel_credentials(device)) == "device-1"

    asyncio.run(session())


def named(authority: Authority, *names: str) -> Pem:
    """A valid certificate of the authority for a client with any number of common names."""
    key = new_key()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateBuilder(authority.certificate.subject, subject, key.public_key(), serial_number=7)
    builder = builder.not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return pem_key(key), pem(builder.sign(authority.key, hashes.SHA256()))


def test_only_a_certificate_with_one_partys_name_gives_a_name(federation: Path) -> None:
    ours, root = load_authority(federation / "ca"), (federation / "ca" / "ca.crt").read_bytes()

    async def session() -> None:
        async with serving(server_credentials(files(federation / "server", "server"))) as port:
            answers = [
                await ask(port, grpc.ssl_channel_credentials(root, *named(ours, *names)))
                for names in (["device-1"], ["two words"], [])
            ]
        assert answers[0] == "device-1"
        assert answers[1].startswith("refused: the certificate of the peer at ipv4:127.0.0.1:")
        assert "'two words'" in answers[1]
        assert answers[2].startswith("refused: ")
        async with serving(None) as port:
            answer = await ask(port, None)
        assert answer.startswith("refused: the peer at ipv4:127.0.0.1:")
        assert "it has 0" in answer

    asyncio.run(session())


def test_a_client_refuses_whoever_is_not_the_server(federation: Path) -> None:
    ours, other = load_authority(federation / "ca"), make_authority(10)
    root = (federation / "ca" / "ca.crt").read_bytes()
    device = channel_credentials(files(federation / "device-1", "device-1"))

    def with_pair(pair: Pem) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([pair], root, require_client_auth=True)

    async def session() -> None:
        async with serving(with_pair(made(ours, "server"))) as port:
            assert await ask(port, device, peer_option("server")) == "device-1"
        for pair in (made(other, "server"), made(ours, "server", now=NOW - timedelta(days=3))):
            async with serving(with_pair(pair)) as port:
                assert await ask(port, device, peer_option("server")) == "unavailable"
        async with serving(with_pair(made(ours, "device_2"))) as port:
            # the address alone does not tell them apart, the name does
            assert await ask(port, device) == "device-1"
            assert await ask(port, device, peer_option("device_2")) == "device-1"
            assert await ask(port, device, peer_option("server")) == "unavailable"
        async with serving(None) as port:
            assert await ask(port, device) == "unavailable"

    asyncio.run(session())


def shown(port: int, mine: Credentials) -> bytes:
    """The fingerprint of the certificate the server shows at a new connection."""
    context = ssl.create_default_context(cafile=str(mine.ca))
    context.load_cert_chain(mine.certificate, mine.key)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="server") as link,
    ):
        certificate = link.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).fingerprint(hashes.SHA256())


def fingerprint(path: Path) -> bytes:
    return x509.load_pem_x509_certificate(path.read_bytes()).fingerprint(hashes.SHA256())


def test_a_renewed_certificate_is_used_at_the_next_connection(
    federation: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, device = files(federation / "server", "server"), files(federation / "device-1", "device-1")
    issue_party(federation / "ca", "server", federation / "again", None, 30)
    again, key, first = files(federation / "again", "server"), server.key.read_bytes(), fingerprint(server.certificate)

    async def session() -> None:
        async with serving(server_credentials(server)) as port:
            assert await asyncio.to_thread(shown, port, device) == first
            issue_party(federation / "ca", "server", federation / "server", None, 60, renew=True)
            second = fingerprint(server.certificate)
            assert second != first
            assert server.key.read_bytes() == key
            assert await asyncio.to_thread(shown, port, device) == second
            # by hand, one file after the other: between the two the old pair goes on, and the log says why, once
            server.certificate.write_bytes(again.certificate.read_bytes())
            assert [await asyncio.to_thread(shown, port, device) for _ in range(2)] == [second, second]
            assert [record.levelno for record in caplog.records if "is not the key of" in record.message] == [
                logging.ERROR
            ]
            server.key.write_bytes(again.key.read_bytes())
            assert await asyncio.to_thread(shown, port, device) == fingerprint(again.certificate)
            server.certificate.unlink()
            assert await asyncio.to_thread(shown, port, device) == fingerprint(again.certificate)
            # a device renews too
            issue_party(federation / "ca", "device-1", federation / "device-1", None, 60, renew=True)
            assert await ask(port, channel_credentials(device), peer_option("server")) == "device-1"

    asyncio.run(session())


def test_a_server_says_once_that_its_own_certificate_ran_out(
    federation: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, device = files(federation / "server", "server"), files(federation / "device-1", "device-1")
    ours, key = load_authority(federation / "ca"), new_key()
    ends = datetime.now(UTC) + timedelta(seconds=3)
    short = issue_certificate(ours, "server", LOCAL_HOSTS, key.public_key(), 1, now=ends - timedelta(days=1))
    server.certificate.write_bytes(pem(short))
    server.key.write_bytes(pem_key(key))

    async def session() -> None:
        async with serving(server_credentials(server)) as port:
            mine = channel_credentials(device)
            assert await ask(port, mine) == "device-1"
            left = short.not_valid_after_utc + timedelta(seconds=1.1) - datetime.now(UTC)
            await asyncio.sleep(left.total_seconds())
            assert [await ask(port, mine) for _ in range(2)] == ["unavailable"] * 2
            told = [record.message for record in caplog.records if "expired on" in record.message]
            assert len(told) == 1
            assert f"dpzv keys issue server --ca DIR --out {server.certificate.parent} --renew" in told[0]
            issue_party(federation / "ca", "server", federation / "server", None, 60, renew=True)
            assert await ask(port, mine) == "device-1"

    asyncio.run(session())


Spoil = Callable[[Credentials], object]


def expire(mine: Credentials) -> None:
    ours, key = load_authority(mine.ca.parent.parent / "ca"), new_key()
    mine.certificate.write_bytes(
        pem(issue_certificate(ours, "server", [], key.public_key(), 1, now=NOW - timedelta(days=2)))
    )
    mine.key.write_bytes(pem_key(key))


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda mine: mine.certificate.unlink(), DataError, "server.crt is missing; make it with `dpzv keys init`"),
        (lambda mine: mine.key.unlink(), DataError, "server.key is missing"),
        (lambda mine: mine.ca.unlink(), DataError, "ca.crt is missing"),
        (lambda mine: mine.key.unlink() or mine.key.mkdir(), DataError, "could not be read (Is a directory)"),
        (lambda mine: mine.certificate.write_bytes(mine.key.read_bytes()), DataError, "it holds a private key"),
        (lambda mine: mine.ca.write_bytes(b"\xff\x00"), DataError, "it holds something else"),
        (lambda mine: mine.key.write_bytes(mine.certificate.read_bytes()), DataError, "must hold a private key"),
        (lambda mine: mine.key.write_bytes(pem_key(new_key())), DataError, "is not the key of"),
        (lambda mine: mine.ca.write_bytes(pem(make_authority(9).certificate)), DataError, "was not issued by"),
        (expire, ConfigError, "server --renew`."),
        (lambda mine: mine.key.chmod(0o644), ConfigError, "is secret, but everybody on this machine may read"),
        (lambda mine: mine.key.chmod(0o602), ConfigError, "with `chmod 600 "),
    ],
)
@pytest.mark.parametrize("make", [server_credentials, channel_credentials])
def test_files_that_will_not_do_are_refused_with_a_sentence(
    federation: Path, make: Callable[[Credentials], object], spoil: Spoil, kind: type[DpzvError], words: str
) -> None:
    mine = files(federation / "server", "server")
    secret = b"".join(mine.key.read_bytes().splitlines()[1:-1]).decode()
    assert make(mine)
    spoil(mine)
    with pytest.raises(kind) as caught:
        make(mine)
    assert words in str(caught.value)
    assert secret[20:60] not in str(caught.value)


def test_an_encrypted_key_is_refused(federation: Path) -> None:
    mine = files(federation / "server", "server")
    key = serialization.load_pem_private_key(mine.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"word")
    mine.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(DataError, match="encrypted with a password"):
        channel_credentials(mine)


def test_an_authority_that_is_over_is_refused(tmp_path: Path) -> None:
    over, key = make_authority(10, now=NOW - timedelta(days=11)), new_key()
    (tmp_path / "ca.crt").write_bytes(pem(over.certificate))
    (tmp_path / "ca.key").write_bytes(pem_key(over.key))
    (tmp_path / "ca.key").chmod(0o600)
    with pytest.raises(ConfigError, match="expired on"):
        load_authority(tmp_path)
    with pytest.raises(ConfigError, match="which has 10 whole days left, got --days 11"):
        issue_certificate(over, "server", [], key.public_key(), 11, now=NOW - timedelta(days=11))
    (tmp_path / "ca.crt").write_bytes(pem(make_authority(10).certificate))
    with pytest.raises(DataError, match="is not the key of"):
        load_authority(tmp_path)


def test_certificates_say_what_the_parties_need(federation: Path) -> None:
    issue_party(federation / "ca", "lab", federation / "lab", ["lab.example", "10.1.2.3", "::1", "lab"], 5)
    certificate = x509.load_pem_x509_certificate((federation / "lab" / "lab.crt").read_bytes())
    assert hosts_of(certificate) == ["lab", "lab.example", "10.1.2.3", "::1"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {x509.OID_SERVER_AUTH, x509.OID_CLIENT_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    begins = certificate.not_valid_before_utc
    assert timedelta(minutes=4) < datetime.now(UTC) - begins < timedelta(minutes=6)
    assert certificate.not_valid_after_utc - begins == timedelta(days=5, minutes=5)
    # a renewal keeps the hosts and the key
    issue_party(federation / "ca", "lab", federation / "lab", None, 6, renew=True)
    again = x509.load_pem_x509_certificate((federation / "lab" / "lab.crt").read_bytes())
    assert hosts_of(again) == hosts_of(certificate)
    assert again.public_key() == certificate.public_key()
    assert again.serial_number != certificate.serial_number
    assert describe(federation / "lab" / "lab.crt").problems == []


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "../a", "a.b", "é", "a" * 64, "a\n", "ca", "CA", "alignment"])
def test_names_that_no_party_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="choose another name"):
        party_name(name)


@pytest.mark.parametrize("host", ["", "a b", "h:50051", "https://h", "10.0.0.256", "*.example", "-h", "a..b", "é.de"])
def test_hosts_that_are_none(host: str) -> None:
    with pytest.raises(ConfigError, match="--host must be"):
        issue_certificate(make_authority(9), "lab", [host], new_key().public_key(), 1)


def test_secrets_are_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the most generous umask, each file is closed to others in the moment it comes to be, when it is empty."""
    born: dict[str, int] = {}
    real = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = real(path, flags, mode, **more)
        if flags & os.O_CREAT:
            born[Path(path).name] = os.fstat(descriptor).st_mode
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(0)
    try:
        create_authority(tmp_path / "ca", 9)
        issue_party(tmp_path / "ca", "lab", tmp_path / "lab", None, 1)
    finally:
        os.umask(before)
    assert {"ca.key", "alignment.key", "ca.crt", "lab.key", "lab.crt"} <= set(born)
    assert {stat.S_IMODE(mode) for mode in born.values()} == {0o600}
    assert {stat.S_IMODE((tmp_path / folder).stat().st_mode) for folder in ("ca", "lab")} == {0o700}
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert {path.name for path in written if stat.S_IMODE(path.stat().st_mode) == 0o644} == {"ca.crt", "lab.crt"}
    assert {path.name for path in written if stat.S_IMODE(path.stat().st_mode) == 0o600} == {
        "ca.key",
        "alignment.key",
        "lab.key",
        "issued.pem",
    }


def test_the_alignment_key_is_32_bytes_that_all_parties_share(federation: Path) -> None:
    key = read_alignment_key(federation / "ca" / "alignment.key")
    assert len(key) == 32
    assert {read_alignment_key(federation / name / "alignment.key") for name in ("server", "device-1")} == {key}
    create_authority(federation / "other", 9)
    assert read_alignment_key(federation / "other" / "alignment.key") != key
    for text in ("", "ab" * 31, "zz" * 32, "é" * 64):
        (federation / "short.key").write_text(text)
        (federation / "short.key").chmod(0o600)
        with pytest.raises(DataError, match="64 hexadecimal digits"):
            read_alignment_key(federation / "short.key")
    (federation / "ca" / "alignment.key").chmod(0o640)  # a group is the administrator's choice
    assert read_alignment_key(federation / "ca" / "alignment.key") == key
    (federation / "ca" / "alignment.key").chmod(0o604)
    with pytest.raises(ConfigError, match="is secret, but everybody on this machine"):
        read_alignment_key(federation / "ca" / "alignment.key")


def test_a_list_of_certificates_that_cannot_be_read_is_told_before_anything_is_issued(federation: Path) -> None:
    register = federation / "ca" / REGISTER
    register.unlink()
    register.mkdir()
    with pytest.raises(DataError, match="must hold certificates in PEM"):
        issue_party(federation / "ca", "device-3", federation / "device-3", None, 90)
    assert not (federation / "device-3" / "device-3.crt").exists()
