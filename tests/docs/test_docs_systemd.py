"""The systemd units of the examples: systemd accepts them, and they restart what a restart can help, nothing else."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpzv.cli.main import app
from dpzv.errors import ConfigError, DataError, DiskError, DpzvError, PeerError, PeerRefused, PrivacyRefused

FOLDER = Path(__file__).parents[2] / "examples" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))


def service(path: Path) -> configparser.SectionProxy:
    """The section [Service] of a unit."""
    read = configparser.ConfigParser(interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(path.read_text())
    return read["Service"]


def test_there_is_a_unit_for_the_server_and_one_for_devices() -> None:
    assert [path.name for path in UNITS] == ["dpzv-device@.service", "dpzv-server.service"]
    assert service(UNITS[1])["Type"] == "notify"  # a device says nothing to systemd
    assert service(UNITS[0])["Type"] == "exec"
    assert service(UNITS[1])["SuccessExitStatus"] == "130"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_restarts_what_a_restart_can_help(path: Path) -> None:
    found = service(path)
    never = {int(code) for code in found["RestartPreventExitStatus"].split()}
    assert never == {kind.exit_code for kind in (ConfigError, DataError, PrivacyRefused, PeerError, PeerRefused)}
    assert not never & {kind.exit_code for kind in (DpzvError, DiskError)}
    assert found["Restart"] == "on-failure"
    verb = found["ExecStart"].split()[1]
    assert verb in {command.name for command in app.registered_commands}
    assert verb in path.name


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(path: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd is not installed")
    copy = tmp_path / path.name.replace("@", "@weather")
    program = service(path)["ExecStart"].split()[0]
    copy.write_text(path.read_text().replace(program, sys.executable))  # it must be there
    done = subprocess.run([tool, "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if path.stem.split("@")[0] in line]) == (0, [])
