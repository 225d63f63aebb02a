"""What a party does when something goes wrong for good: who is told what, and who ends with which code."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from federation import NAMES, Parties, config_of, hello, serving
from safetensors import safe_open
from safetensors.torch import save_file
from town import Town, town

from dpzv.config import Config
from dpzv.errors import DataError, PeerRefused
from dpzv.network import wire
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.transport import LinkLost, Stream
from dpzv.network.wire import pack
from dpzv.privacy.ledger import Ledger

CONFIG = config_of("head.rule=frozen", "train.rounds=8")


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


def test_an_unexpected_error_reaches_a_device_as_one_constant_sentence(
    parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    """Over gRPC the text of an exception would be sent word by word; here it names a label."""

    async def broken(stream: Stream) -> None:
        await stream.read()
        raise ValueError("record-7 has label 'ill'")

    async def heard() -> str:
        listener = parties.tls_listener()
        await listener.start(broken)
        try:
            async with parties.tls_connector(NAMES[0], listener.port).connect() as stream:
                await stream.write(pack(hello(CONFIG, "", 0, b"")))
                with pytest.raises(LinkLost) as lost:
                    await stream.read()
                return str(lost.value)
        finally:
            await listener.stop(1)

    said = asyncio.run(heard())
    assert said == "INTERNAL: the server had an internal error; its log says more"
    assert "record-7 has label 'ill'" in caplog.text


def trained(parties: Parties, out: Path) -> None:
    """Leave the folders of a run whose rounds are over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "end", lambda self: None)  # it died before that
        assert asyncio.run(asyncio.wait_for(parties.together(CONFIG, out), 60)) is not None
    (out / "server" / "summary.json").unlink()


async def taking_part(parties: Parties, out: Path, config: Config = CONFIG, name: str = NAMES[0]) -> None:
    """A device alone with its server; ends when the server ends it."""
    listener = MemoryListener((*NAMES, "stranger"))
    async with serving(parties.server(CONFIG, out / "server"), listener):
        await asyncio.wait_for(parties.device(config, 1, out / NAMES[0]).run(listener.connector(name)), 15)


@pytest.mark.parametrize("what", ["configuration", "name", "protocol", "older hello", "ids", "run"])
def test_a_device_that_is_refused_for_good_ends(
    parties: Parties,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    """Coming back would not change the answer, so the operator hears it, and both sides log an error."""
    out, config, name = tmp_path / "out", CONFIG, NAMES[0]
    if what in ("ids", "run"):
        trained(parties, out)
        (out / "server" / "checkpoint" / "tests.safetensors").unlink()
    if what == "configuration":
        config = config_of("head.rule=frozen", "train.rounds=9")
    if what == "name":
        name = "stranger"
    if what == "protocol":
        before = hello(CONFIG, "", 0, b"")
        monkeypatch.setattr(
            "dpzv.network.device_conversation.hello", lambda *_, **__: wire.Hello("9.9", 9, *_rest(before))
        )
    if what == "older hello":
        monkeypatch.setattr("dpzv.network.device_conversation.pack", lambda _: b"c" + b"\x93\xa5hello\xa31.0\x01")
    if what == "ids":
        own = parties.features[0]
        monkeypatch.setattr(parties, "features", [FeatureRecords(own.hashes[1:], own.x[1:]), *parties.features[1:]])
    if what == "run":
        state = out / NAMES[0] / "state.safetensors"
        with safe_open(state, "pt") as file:
            tensors, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
        run_id = metadata["state"].split('"run_id":"')[1][:32]
        save_file(tensors, state, {"state": metadata["state"].replace(run_id, "0" * 32)})
    words = {
        "configuration": "another run configuration",
        "name": "is not a device of this run",
        "protocol": "speaks protocol 9",
        "older hello": "speaks protocol 1",
        "ids": "other record ids",
        "run": "weights of another run",
    }[what]
    with pytest.raises(PeerRefused, match=words):
        asyncio.run(taking_part(parties, out, config, name))
    errors = [record.name for record in caplog.records if record.levelname == "ERROR" and words in record.getMessage()]
    assert sorted(set(errors)) == ["dpzv.device", "dpzv.server"]


def _rest(said: wire.Hello) -> list[Any]:
    return [getattr(said, name) for name in said.__struct_fields__[2:]]


def test_a_server_without_its_checkpoint_ends_with_a_sentence(parties: Parties, tmp_path: Path) -> None:
    """It would fill a new table, meet rounds that its ledger already has, and fail at each of them."""
    out = tmp_path / "out"
    trained(parties, out)
    shutil.rmtree(out / "server" / "checkpoint")
    lines = (out / "server" / "transcript.jsonl").read_bytes()
    with pytest.raises(DataError, match="is missing, but the ledger has 8 releases"):
        asyncio.run(asyncio.wait_for(parties.together(CONFIG, out), 30))
    assert (out / "server" / "transcript.jsonl").read_bytes() == lines


TOWN: dict[str, Any] = {
    "data": {"name": "made-up", "holdout": 0.4},
    "devices": {"embedding": 1},
    "train": {"rounds": 8, "B": 256},
    "head": {"rule": "frozen"},
    "privacy": {"epsilon": 100.0},
    "network": {"devices": ["north", "east"]},
    "runtime": {"kind": "network", "threads": 1},
}


def quietly(made: Town, *names: str) -> None:
    for name in names:
        made._run(name, ["server" if name == "server" else "device", "--quiet", f"{name}.toml"], None, 0)


def test_parties_that_share_no_records_all_end_and_say_so(tmp_path: Path) -> None:
    """The server's operator sees counts; devices hear only that it failed. Nobody waits."""
    with town(tmp_path, TOWN, 600) as made:
        file = tmp_path / "east" / "own.csv"
        file.write_text(file.read_text().replace("record-", "other-"))
        quietly(made, "server", "north", "east")
        made.until(lambda: all(made.exit_code(name) is not None for name in ("server", "north", "east")), 90)
        assert [made.exit_code(name) for name in ("server", "north", "east")] == [3, 5, 5]
        assert "the parties must share at least 426 ids, got 0: the server has 600 rows" in made.log("server")
        for name in ("north", "east"):
            assert "records could not be aligned" in made.log(name)
            assert "600" not in made.log(name)


def test_a_refusal_is_seen_although_the_party_is_quiet(tmp_path: Path) -> None:
    with town(tmp_path, TOWN, 600) as made:
        file = tmp_path / "east" / "run.toml"
        file.write_text(file.read_text().replace("rounds = 8", "rounds = 9"))
        quietly(made, "server", "east")
        made.until(lambda: made.exit_code("east") is not None, 60)
        assert made.exit_code("east") == 5
        assert "dpzv: the server does not accept this device as it is" in made.log("east")
        assert "'east' has another run configuration" in made.log("server")
