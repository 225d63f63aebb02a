"""A party's weights are bound to what they mean: its encoding, its records, its classes. Anything else is refused."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import NAMES, Parties, config_of, serving
from msgspec.structs import replace
from town import write_parties

from dpzv.config import Config
from dpzv.data.columns import Column
from dpzv.errors import ConfigError, DataError, PeerRefused, PrivacyRefused
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_party import DeviceParty
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.party import load_party
from dpzv.network.predict import Predictor
from dpzv.network.server_party import ServerParty
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.run_folder import RunFolder

CONFIG = config_of("head.rule=frozen", "train.rounds=8")
COLUMNS = (
    Column(device=1, name="carrier", kind="category", values=("AA", "UA"), source="made up"),
    Column(device=1, name="humid", kind="range", low=0, high=100, source="made up"),
)
MEANING = {"label": "'arrival'", "classes": "('in time', 'late')"}
KEY = bytes(range(32))


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    """The first device has settings for its columns, the server for its labels."""
    made = Parties.made(tmp_path / "parties")
    made.features[0] = replace(made.features[0], columns=COLUMNS, key=KEY)
    made.labels = dataclasses.replace(made.labels, meaning=MEANING)
    return made


def trained(parties: Parties, out: Path) -> None:
    assert asyncio.run(asyncio.wait_for(parties.together(CONFIG, out), 60)) is not None


def alone(device: DeviceParty) -> None:
    """Start a device whose server is nowhere."""
    asyncio.run(asyncio.wait_for(device.run(MemoryListener(()).connector(NAMES[0])), 5))


def in_the_middle(parties: Parties, out: Path) -> None:
    """Leave the folders of a run that was stopped after some rounds."""
    config = config_of("head.rule=frozen", "train.rounds=1000", "train.eval_every=2000")

    async def run() -> None:
        listener, server = MemoryListener(NAMES), parties.server(config, out / "server")
        async with serving(server, listener) as finished:
            devices = [parties.device(config, m, out / name) for m, name in enumerate(NAMES, 1)]
            tasks = [
                asyncio.create_task(one.run(listener.connector(name))) for one, name in zip(devices, NAMES, strict=True)
            ]
            while server.status().round < 5:
                await asyncio.sleep(0.01)
            for device in devices:
                device.stop()
            await asyncio.gather(*tasks)
            server.stop()
            await finished

    asyncio.run(asyncio.wait_for(run(), 60))


def swapped(column: Column) -> Column:
    return replace(column, values=column.values[::-1])


CHANGES: dict[str, tuple[Callable[[tuple[Column, ...]], tuple[Column, ...]], str]] = {
    "values": (lambda c: (swapped(c[0]), c[1]), "'values' of column 'carrier' was .*'AA', 'UA'.* is .*'UA', 'AA'"),
    "range": (lambda c: (c[0], replace(c[1], high=50.0)), "'high' of column 'humid' was 100.0, and is 50.0"),
    "order": (lambda c: c[::-1], "columns were carrier, humid, and are humid, carrier"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_device_refuses_another_encoding_than_its_weights_were_trained_with(
    parties: Parties, tmp_path: Path, what: str
) -> None:
    """Before it connects; a source that is worded otherwise changes nothing. The server would refuse it as well."""
    trained(parties, tmp_path)
    change, words = CHANGES[what]
    renamed = tuple(replace(column, source="the same") for column in COLUMNS)
    parties.features[0] = replace(parties.features[0], columns=renamed)
    parties.device(CONFIG, 1, tmp_path / NAMES[0]).conversation.check()
    parties.features[0] = replace(parties.features[0], columns=change(COLUMNS))
    with pytest.raises(ConfigError, match=words):
        alone(parties.device(CONFIG, 1, tmp_path / NAMES[0]))


def test_a_prediction_with_another_encoding_is_refused_although_the_device_does_not_say_so(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(parties, tmp_path)
    assert asyncio.run(parties.predicted(CONFIG, tmp_path)).shape == (2, 10)
    parties.features[0] = replace(parties.features[0], columns=(swapped(COLUMNS[0]), COLUMNS[1]))
    monkeypatch.setattr(Conversation, "check", lambda _: None)
    with pytest.raises(PeerRefused, match="device 1 encodes its columns otherwise"):
        asyncio.run(parties.predicted(CONFIG, tmp_path))


def test_other_records_are_refused_in_the_middle_of_a_run_and_welcome_after_it(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device sees it by its folder, the server by what it was told at the first meeting."""
    config = config_of("head.rule=frozen", "train.rounds=1000", "train.eval_every=2000")
    in_the_middle(parties, tmp_path)
    own = parties.features[0]
    parties.features[0] = replace(own, x=np.full_like(own.x, 0.5))
    device = parties.device(config, 1, tmp_path / NAMES[0])
    with pytest.raises(ConfigError, match="other records than when its run began"):
        alone(device)

    async def lying() -> None:
        listener = MemoryListener(NAMES)
        async with serving(parties.server(config, tmp_path / "server"), listener):
            await asyncio.wait_for(device.run(listener.connector(NAMES[0])), 20)

    monkeypatch.setattr(Conversation, "check", lambda _: None)
    with pytest.raises(PeerRefused, match="device 1 has other features than when this run began"):
        asyncio.run(lying())


def test_new_records_are_predicted_and_do_not_end_a_device_of_a_finished_run(parties: Parties, tmp_path: Path) -> None:
    trained(parties, tmp_path)
    own = parties.features[0]
    parties.features[0] = replace(own, hashes=own.hashes[:-5], x=own.x[:-5] / 2)  # another file, other values
    assert asyncio.run(parties.predicted(CONFIG, tmp_path)).shape == (2, 10)
    assert asyncio.run(asyncio.wait_for(parties.together(CONFIG, tmp_path), 60)) is not None  # it hears the end again


def test_a_server_refuses_other_classes_than_its_head_was_trained_with(parties: Parties, tmp_path: Path) -> None:
    trained(parties, tmp_path)
    folder = RunFolder.existing(tmp_path / "server")
    parties.labels = dataclasses.replace(parties.labels, meaning=MEANING | {"classes": "('late', 'in time')"})
    with pytest.raises(
        ConfigError, match=r"data\.labels\.classes was \('in time', 'late'\) .* is \('late', 'in time'\)"
    ):
        Predictor(CONFIG, parties.labels, folder, lambda: parties.labels.hashes[:2])
    with pytest.raises(ConfigError, match="classes"):
        parties.server(CONFIG, tmp_path / "server")


def test_a_party_binds_what_its_file_says(tmp_path: Path) -> None:
    town: dict[str, Any] = {
        "data": {"name": "made-up", "holdout": 0.4},
        "train": {"rounds": 8, "B": 256},
        "network": {"devices": ["north"]},
        "runtime": {"kind": "network"},
    }
    write_parties(tmp_path, town, 300, 1)
    features = load_party(tmp_path / "north" / "north.toml").features()
    assert [column.name for column in features.columns] == ["u", "v"]
    assert features.digests() != replace(features, key=b"").digests()
    labels = load_party(tmp_path / "server" / "server.toml").labels()
    assert labels.meaning["classes"] == "('a', 'b')"
    assert labels.meaning["label"] == "'y'"


def test_a_damaged_folder_of_a_device_is_refused_with_a_sentence(parties: Parties, tmp_path: Path) -> None:
    trained(parties, tmp_path)
    state = tmp_path / NAMES[0] / "state.safetensors"
    whole = state.read_bytes()
    for damaged in (whole[:100], whole.replace(b"run_id", b"run_ix"), whole.replace(b'"state"', b'"stete"')):
        state.write_bytes(damaged)
        with pytest.raises((DataError, ConfigError), match="is not the state of this device"):
            alone(parties.device(CONFIG, 1, state.parent))


# --- a start that is refused ----------------------------------------------------------------------


def begun(parties: Parties, config: Config, out: Path) -> dict[str, Any] | None:
    """A server over the folder of its own settings, and the devices of the run, until the server ends."""

    async def run() -> dict[str, Any] | None:
        agreed, listener = replace(config, privacy=replace(config.privacy, parents=())), MemoryListener(NAMES)
        server = ServerParty(config, parties.labels, RunFolder.of_run(out / "server", config))
        async with serving(server, listener) as finished:
            return await parties.finish(agreed, out, finished, listener.connector)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_a_start_refused_for_its_parents_leaves_a_folder_that_another_epsilon_may_use(
    parties: Parties, tmp_path: Path
) -> None:
    trained(parties, tmp_path / "first")
    parents, second = (str(tmp_path / "first" / "server"),), tmp_path / "second"
    spent = replace(CONFIG, privacy=replace(CONFIG.privacy, parents=parents))
    with pytest.raises(PrivacyRefused, match="leave nothing of epsilon=") as refused:
        begun(parties, spent, second)
    assert read_ledger(tmp_path / "first" / "server").run_id[:8] in str(refused.value)
    assert not (second / "server" / "config.toml").exists()
    more = replace(spent, privacy=replace(spent.privacy, epsilon=3 * CONFIG.privacy.epsilon))
    assert begun(parties, more, second) is not None
    assert RunFolder.existing(second / "server").config() == more


def test_a_start_refused_by_its_ledger_leaves_the_settings_as_they_were(parties: Parties, tmp_path: Path) -> None:
    in_the_middle(parties, tmp_path)
    (tmp_path / "server" / "ledger.sqlite").unlink()
    before = (tmp_path / "server" / "config.toml").read_bytes()
    config = RunFolder.existing(tmp_path / "server").config()
    with pytest.raises(PrivacyRefused, match="is missing"):
        begun(parties, replace(config, runtime=replace(config.runtime, threads=2)), tmp_path)
    assert (tmp_path / "server" / "config.toml").read_bytes() == before
