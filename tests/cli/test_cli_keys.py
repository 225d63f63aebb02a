"""`dpzv keys`: what it writes, what it shows, what it refuses."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dpzv.network.identity import issue_certificate, new_key
from dpzv.network.keyfiles import load_authority
from tests.cli.conftest import Cli


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}


@pytest.fixture
def lab(cli: Cli, tmp_path: Path) -> Path:
    """An authority in `ca`, and party lab in `lab`."""
    assert cli("keys", "init", "--out", "ca").returncode == 0
    assert cli("keys", "issue", "lab", "--ca", "ca", "--out", "lab", "--host", "lab.example").returncode == 0
    return tmp_path / "lab"


def test_init_issue_show(cli: Cli, lab: Path) -> None:
    ca = lab.parent / "ca"
    secret = dict.fromkeys(("ca.key", "alignment.key", "issued.pem"), "0o600")
    assert modes(ca) == {"ca.crt": "0o644", **secret}
    assert modes(lab) == {"lab.crt": "0o644", "lab.key": "0o600", "ca.crt": "0o644", "alignment.key": "0o600"}
    for name in ("ca.crt", "alignment.key"):
        assert (lab / name).read_bytes() == (ca / name).read_bytes()
    shown = cli("keys", "show", "lab/lab.crt", "ca/ca.crt")
    assert shown.returncode == 0
    assert "lab/lab.crt: party lab" in shown.stdout
    assert "hosts        lab, lab.example" in shown.stdout
    assert "(90 days left)" in shown.stdout
    assert "(3650 days left)" in shown.stdout
    assert "PROBLEM" not in shown.stdout
    party, authority = json.loads(cli("keys", "show", "lab/lab.crt", "ca/ca.crt", "--json").stdout)
    assert (party["name"], party["authority"], party["problems"]) == ("lab", False, [])
    assert (authority["name"], authority["authority"], authority["hosts"]) == (party["issuer"], True, [])
    assert party["days_left"] == pytest.approx(90, abs=0.01)
    assert party["sha256"] in shown.stdout
    assert len(party["sha256"]) == 32 * 3 - 1


def test_no_command_prints_a_secret(cli: Cli, lab: Path) -> None:
    printed = ""
    for arguments in (
        ["init", "--out", "ca2"],
        ["issue", "b", "--ca", "ca2", "--out", "b"],
        ["issue", "b", "--ca", "ca2", "--out", "b", "--renew"],
        ["show", "b/b.crt", "--json"],
        ["show", "b/b.key"],
        ["show", "b/alignment.key"],
    ):
        done = cli("keys", *arguments)
        printed += done.stdout + done.stderr
    assert "b/b.crt: party b" in printed
    for name in ("ca2/ca.key", "b/b.key", "b/alignment.key"):
        lines = [line for line in (lab.parent / name).read_text().splitlines() if "-----" not in line]
        assert lines
        assert not any(line[:20] in printed for line in lines), name


def test_a_renewal_must_be_asked_for(cli: Cli, lab: Path) -> None:
    before = {path.name: path.read_bytes() for path in lab.iterdir()}
    issue = ["keys", "issue", "lab", "--ca", "ca", "--out", "lab"]
    refused = cli(*issue)
    assert refused.returncode == 2
    assert "lab.crt exists already; add --renew" in refused.stderr
    assert {path.name: path.read_bytes() for path in lab.iterdir()} == before
    assert cli(*issue, "--renew", "--days", "30").returncode == 0
    after = {path.name: path.read_bytes() for path in lab.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"lab.crt"}
    assert set(after) == set(before)
    (shown,) = json.loads(cli("keys", "show", "lab/lab.crt", "--json").stdout)
    assert shown["days_left"] == pytest.approx(30, abs=0.01)
    assert shown["hosts"] == ["lab", "lab.example"]
    assert cli(*issue, "--renew", "--host", "10.0.0.7").returncode == 0
    (shown,) = json.loads(cli("keys", "show", "lab/lab.crt", "--json").stdout)
    assert shown["hosts"] == ["lab", "10.0.0.7"]
    nothing = cli("keys", "issue", "b", "--ca", "ca", "--out", "b", "--renew")
    assert (nothing.returncode, (lab.parent / "b").exists()) == (2, False)
    assert "without --renew" in nothing.stderr


def test_show_says_what_is_wrong(cli: Cli, lab: Path) -> None:
    ours = load_authority(lab.parent / "ca")
    past = datetime.now(UTC) - timedelta(days=5)
    old = issue_certificate(ours, "lab", [], new_key().public_key(), 2, now=past)
    (lab / "old.crt").write_bytes(old.public_bytes(serialization.Encoding.PEM))
    shown = cli("keys", "show", "lab/old.crt").stdout
    assert "PROBLEM: it expired on" in shown
    assert "(3 days ago)" in shown
    assert cli("keys", "init", "--out", "other").returncode == 0
    (lab.parent / "other" / "lab.crt").write_bytes((lab / "lab.crt").read_bytes())
    assert "does not belong to the authority beside it" in cli("keys", "show", "other/lab.crt").stdout
    (lab / "ca.crt").unlink()
    assert "has no ca.crt beside it" in cli("keys", "show", "lab/lab.crt").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["init", "--out", "ca"], 2, "ca already holds an authority (ca.crt); choose another --out."),
        (["init", "--out", "new", "--days", "0"], 2, "--days must be a whole number of at least 1"),
        (["init", "--out", "new", "--days", "99999999"], 2, "--days must be at most 36500"),
        (["init", "--out", "lab/lab.crt"], 6, "lab.crt/ca.key could not be written"),
        (["issue", "x y", "--ca", "ca", "--out", "new"], 2, "letters, digits, - and _"),
        (["issue", "ca", "--ca", "ca", "--out", "ca"], 2, "taken by the authority's own files"),
        (["issue", "x", "--ca", "lab", "--out", "new"], 3, "ca.key is missing"),
        (["issue", "x", "--ca", "ca", "--out", "new", "--days", "3650"], 2, "may not outlive its authority"),
        (["issue", "x", "--ca", "ca", "--out", "new", "--host", "h:1"], 2, "without a port, got 'h:1'"),
        (["init", "--out", "new", "--keep-alignment", "none"], 3, "alignment.key is missing"),
        (["revoke", "x", "--ca", "ca"], 2, "never issued a certificate to 'x'; give a party's name."),
        (["revoke", "lab", "--ca", "lab"], 3, "ca.key is missing"),
        (["show", "lab/none.crt"], 3, "none.crt is missing"),
        (["show", "lab/lab.key"], 3, "it holds a private key; give the .crt file."),
    ],
)
def test_refusals_are_sentences_and_write_nothing(
    cli: Cli, lab: Path, arguments: list[str], code: int, words: str
) -> None:
    before = {path: path.read_bytes() for path in lab.parent.rglob("*") if path.is_file()}
    done = cli("keys", *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in lab.parent.rglob("*") if path.is_file()} == before


def test_one_folder_does_not_mix_two_authorities(cli: Cli, lab: Path) -> None:
    assert cli("keys", "init", "--out", "other").returncode == 0
    mixed = cli("keys", "issue", "b", "--ca", "other", "--out", "lab")
    assert mixed.returncode == 2
    assert "is of another authority than other" in mixed.stderr
    assert not (lab / "b.key").exists()
    # but one folder may hold two parties of the same authority
    assert cli("keys", "issue", "b", "--ca", "ca", "--out", "lab").returncode == 0


def test_all_certificates_of_a_party_are_revoked_and_its_key_with_them(cli: Cli, lab: Path) -> None:
    ca = lab.parent / "ca"
    first = x509.load_pem_x509_certificate((lab / "lab.crt").read_bytes())
    issue = ["keys", "issue", "lab", "--ca", "ca", "--out"]
    assert cli(*issue, "lab", "--renew").returncode == 0
    second = x509.load_pem_x509_certificate((lab / "lab.crt").read_bytes())
    assert cli("keys", "issue", "b", "--ca", "ca", "--out", "b").returncode == 0
    told = cli("keys", "revoke", "lab", "--ca", "ca")
    assert "ca/ca.crl: all certificates of lab are revoked, 2 of them now" in told.stdout
    found = x509.load_pem_x509_crl((ca / "ca.crl").read_bytes())
    assert {entry.serial_number for entry in found} == {first.serial_number, second.serial_number}
    assert found.is_signature_valid(load_authority(ca).key.public_key())
    (lab / "ca.crl").write_bytes((ca / "ca.crl").read_bytes())
    assert "PROBLEM: it was revoked, says lab/ca.crl." in cli("keys", "show", "lab/lab.crt").stdout
    # the key may be in other hands
    refused = cli(*issue, "lab", "--renew")
    assert refused.returncode == 2
    assert "its key gets no new one; issue a new key to another --out, without --renew." in refused.stderr
    assert cli(*issue, "again").returncode == 0
    assert "PROBLEM" not in cli("keys", "show", "again/lab.crt", "b/b.crt").stdout
    assert (lab.parent / "again" / "ca.crl").read_bytes() == (ca / "ca.crl").read_bytes()
    assert "1 of them now" in cli("keys", "revoke", "lab", "--ca", "ca").stdout
    assert "0 of them now" in cli("keys", "revoke", "lab", "--ca", "ca").stdout


def test_a_new_authority_may_keep_the_alignment_key(cli: Cli, lab: Path) -> None:
    assert cli("keys", "init", "--out", "new", "--keep-alignment", "ca").returncode == 0
    new, old = lab.parent / "new", lab.parent / "ca"
    assert (new / "alignment.key").read_bytes() == (old / "alignment.key").read_bytes()
    assert (new / "ca.key").read_bytes() != (old / "ca.key").read_bytes()
    assert cli("keys", "issue", "lab", "--ca", "new", "--out", "lab2").returncode == 0
    assert "PROBLEM" not in cli("keys", "show", "lab2/lab.crt").stdout


def test_keys_need_neither_torch_nor_grpc(tmp_path: Path) -> None:
    code = (
        "import sys; from dpzv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'grpc', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "keys", "init", "--out", str(tmp_path / "ca")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "ca" / "ca.crt").exists()
    assert done.stdout.splitlines()[-1] == "[]"
