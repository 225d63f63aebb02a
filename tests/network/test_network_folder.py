"""One process at a time owns a device's folder, and only its owner can read what the parties write."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from federation import Parties, config_of
from town import town, write_parties

from dpzv.errors import ConfigError
from dpzv.network.party import load_party

CONFIG = {
    "data": {"holdout": 0.2},
    "train": {"rounds": 10},
    "network": {"devices": ["north"]},
}


def test_a_second_process_on_a_devices_folder_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    with town(tmp_path, CONFIG, 60) as parties:
        parties.start("north")
        parties.until(lambda: "the link to the server is lost" in parties.log("north"))
        first = parties.processes["north"]
        parties.start("north")
        parties.until(lambda: parties.exit_code("north") is not None)
        assert parties.exit_code("north") == 2
        assert "out, the folder of a device, is in use by another process; wait for that process to end" in (
            parties.log("north")
        )
        assert first.exitcode is None
        first.kill()
        first.join()
        lost = parties.log("north").count("the link to the server is lost")
        parties.start("north")  # the operating system let the lock go
        parties.until(lambda: parties.log("north").count("the link to the server is lost") > lost)
        assert parties.exit_code("north") is None


def test_what_parties_write_is_for_their_owner_alone(tmp_path: Path) -> None:
    parties = Parties.made(tmp_path / "parties")
    before = os.umask(0)
    try:
        asyncio.run(parties.together(config_of("head.rule=frozen", "train.rounds=4"), tmp_path / "out"))
    finally:
        os.umask(before)
    found = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*")}
    expected = "ledger.sqlite transcript.jsonl metrics.jsonl alignment.safetensors status.json summary.json config.toml"
    assert {f"server/{name}" for name in expected.split()} <= set(found)
    assert {"server/checkpoint/state.safetensors", "north/state.safetensors"} <= set(found)
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}
    assert {n: oct(mode) for n, mode in modes.items() if mode != (0o700 if found[n].is_dir() else 0o600)} == {}


def test_who_takes_part_over_a_network_is_not_said_twice(tmp_path: Path) -> None:
    write_parties(tmp_path, CONFIG, 60, 7443)
    assert load_party(tmp_path / "north" / "north.toml").config.network.devices == ("north",)
    (tmp_path / "twice").mkdir()
    write_parties(tmp_path / "twice", {**CONFIG, "data": {"holdout": 0.2, "devices": [1]}}, 60, 7443)
    with pytest.raises(ConfigError, match=r"got data.devices \[1\] in the agreed run; remove data.devices"):
        load_party(tmp_path / "twice" / "north" / "north.toml")
