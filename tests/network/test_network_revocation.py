"""A party that is shut out is closed within seconds and stays out; keys are replaced in the middle of a run."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from federation import NAMES, Parties
from town import town
from typer.testing import CliRunner

from dpzv.cli.main import app
from dpzv.errors import DataError
from dpzv.network.grpc_transport import GrpcListener
from dpzv.network.identity import LOCAL_HOSTS, issue_certificate, new_key
from dpzv.network.keyfiles import create_authority, issue_party, load_authority, revoke_party
from dpzv.network.transport import LinkLost, Stream

DEVICES = ["north", "east", "south"]
MOST_BEHIND = 60


def config(T: int) -> dict[str, Any]:
    return {
        "data": {"name": "made-up", "holdout": 0.2},
        "devices": {"embedding": 1},
        "train": {"rounds": T, "B": 64, "eta_m": 1e-3, "eval_every": T},
        "head": {"rule": "frozen", "hidden": 4, "refit_steps": 20},
        "privacy": {"epsilon": 8.0},
        "noise": {"source": "exact"},
        "network": {"devices": DEVICES, "order": "arrival", "max_delay": MOST_BEHIND},
        "runtime": {"kind": "network", "threads": 1, "checkpoint_seconds": 1.0},
    }


def keys(*arguments: str | Path) -> None:
    """``dpzv keys ...``"""
    done = CliRunner().invoke(app, ["keys", *map(str, arguments)])
    assert done.exit_code == 0, done.output


def put(source: Path, target: Path) -> None:
    """Replace a file in one step, as the page says."""
    shutil.copy(source, target.with_name(target.name + ".new"))
    os.rename(target.with_name(target.name + ".new"), target)


def test_a_revoked_device_is_closed_and_comes_back_with_a_new_key(tmp_path: Path) -> None:
    ca = tmp_path / "ca"
    with town(tmp_path, config(5000), 200) as parties:
        for name in ("server", *DEVICES):
            parties.start(name)
        parties.until(lambda: parties.releases() > 100)

        keys("revoke", "north", "--ca", ca)
        put(ca / "ca.crl", tmp_path / "server" / "keys" / "ca.crl")
        closed = "the certificate of 'north' was revoked"
        assert parties.until(lambda: closed in parties.log("server"), 20) < 10
        parties.until(lambda: closed in parties.log("north"))  # its operator is told why
        last = max(row[0] for row in parties.ledger_rows() if row[1] == 1)
        parties.until(lambda: parties.releases() >= last + MOST_BEHIND)  # at first nobody waits for it
        parties.until(lambda: parties.log("server").count(closed) > 1)  # it tries again, and stays out
        time.sleep(1)  # enough for the rounds that may still begin
        waiting = parties.releases()
        time.sleep(1)
        assert parties.releases() == waiting  # now the others wait, as the run says
        assert max(row[0] for row in parties.ledger_rows() if row[1] == 1) == last

        keys("issue", "north", "--ca", ca, "--out", tmp_path / "fresh", "--days", "5")
        for file in ("north.key", "north.crt"):
            put(tmp_path / "fresh" / file, tmp_path / "north" / "keys" / file)
        parties.until(lambda: parties.releases() > waiting + 100)  # without a restart of anybody
        assert {parties.exit_code(name) for name in parties.processes} == {None}


@pytest.mark.soak
def test_a_run_goes_on_under_a_new_authority_that_keeps_the_alignment_key(tmp_path: Path) -> None:
    ca, rounds = tmp_path / "ca", 1500
    with town(tmp_path, config(rounds), 200) as parties:
        for name in ("server", *DEVICES):
            parties.start(name)
        parties.until(lambda: parties.releases() > 100)
        for name in ("server", *DEVICES):
            parties.signal(name, signal.SIGTERM)
        parties.until(lambda: all(parties.exit_code(name) is not None for name in parties.processes))
        assert parties.releases() < rounds
        keys("init", "--out", tmp_path / "ca2", "--keep-alignment", ca)
        for name in ("server", *DEVICES):
            keys("issue", name, "--ca", tmp_path / "ca2", "--out", tmp_path / "new" / name)
            os.rename(tmp_path / name / "keys", tmp_path / name / "old-keys")
            os.rename(tmp_path / "new" / name, tmp_path / name / "keys")
            parties.start(name)
        parties.until(lambda: all(parties.exit_code(name) is not None for name in parties.processes), 100)
        assert {parties.exit_code(name) for name in parties.processes} == {0}, parties.logs()
        assert [row[0] for row in parties.ledger_rows()] == list(range(1, rounds + 1))


async def echo(stream: Stream) -> None:
    await stream.write(b"hello")
    while (frame := await stream.read()) is not None:
        await stream.write(frame)


def briefly(parties: Parties, name: str, seconds: float) -> datetime:
    """Give a party a certificate that ends soon; returns when."""
    ends, mine, key = datetime.now(UTC) + timedelta(seconds=seconds), parties.credentials(name), new_key()
    ours = load_authority(parties.folder / "ca")
    short = issue_certificate(ours, name, LOCAL_HOSTS, key.public_key(), 1, now=ends - timedelta(days=1))
    mine.certificate.write_bytes(short.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    mine.key.write_bytes(key.private_bytes(*form))
    return short.not_valid_after_utc


def test_an_open_stream_ends_with_its_certificate_and_others_stay_open(tmp_path: Path) -> None:
    parties = Parties.made(tmp_path)
    north, east = NAMES[:2]

    async def session() -> None:
        listener = parties.tls_listener()
        await listener.start(echo)
        until = briefly(parties, north, 2.5)
        async with (
            parties.tls_connector(north, listener.port).connect() as short,
            parties.tls_connector(east, listener.port).connect() as long,
        ):
            assert [await short.read(), await long.read()] == [b"hello"] * 2
            with pytest.raises(LinkLost, match=f"UNAUTHENTICATED: the certificate of '{north}' expired on"):
                await asyncio.wait_for(short.read(), 15)
            assert timedelta(0) <= datetime.now(UTC) - until < timedelta(seconds=6)
            await long.write(b"still here")
            assert await long.read() == b"still here"
        await listener.stop(0)

    asyncio.run(session())


def test_the_list_in_use_stays_when_its_file_is_lost_damaged_or_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parties = Parties.made(tmp_path)
    north, east = NAMES[:2]
    mine = parties.credentials("server").ca.with_name("ca.crl")

    async def greeted(listener: GrpcListener, name: str) -> str:
        async with parties.tls_connector(name, listener.port).connect() as stream:
            try:
                return str(await stream.read())
            except LinkLost as error:
                return str(error)

    async def session() -> None:
        listener = parties.tls_listener()
        await listener.start(echo)
        assert await greeted(listener, north) == "b'hello'"
        assert revoke_party(tmp_path / "ca", north) == 1
        put(tmp_path / "ca" / "ca.crl", mine)
        old = mine.read_bytes()
        assert "was revoked" in await greeted(listener, north)
        revoke_party(tmp_path / "ca", east)
        put(tmp_path / "ca" / "ca.crl", mine)
        for spoil in (
            lambda: mine.write_bytes(b"nothing"),
            lambda: mine.write_bytes(old),
            lambda: mine.unlink(),
        ):
            assert "was revoked" in await greeted(listener, east)
            spoil()
        assert "was revoked" in await greeted(listener, east)
        assert await greeted(listener, NAMES[2]) == "b'hello'"
        await listener.stop(0)

    with caplog.at_level(logging.ERROR, "dpzv.server"):
        asyncio.run(session())
    assert all(words in caplog.text for words in ("must hold a list", "older than list 2", "could not be read"))
    # a server does not start with a list that its authority has not signed
    create_authority(tmp_path / "other", 9)
    issue_party(tmp_path / "other", "x", tmp_path / "x", None, 1)
    revoke_party(tmp_path / "other", "x")
    put(tmp_path / "other" / "ca.crl", mine)
    with pytest.raises(DataError, match=r"is not signed by the authority in ca.crt; copy ca.crl again"):
        asyncio.run(parties.tls_listener().start(echo))
