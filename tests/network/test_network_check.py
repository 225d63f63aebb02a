"""`dpzv check`: what a start would be refused for is refused by the party alone, in a sentence with its code."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import os
import shutil
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from town import free_port, write_parties

from dpzv.cli import main
from dpzv.config import parse
from dpzv.data.columns import Column
from dpzv.durable import holding, write_tensors
from dpzv.errors import ConfigError, DpzvError, PrivacyRefused
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder, DeviceState
from dpzv.network.party import load_party
from dpzv.network.serving import serve
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.lineage import end
from dpzv.privacy.plan import MOST_NUMBERS
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import plan_of

CONFIG: dict[str, Any] = {
    "train": {"rounds": 8, "B": 64},
    "data": {"holdout": 0.2},
    "devices": {"model": "linear", "embedding": 4},
    "head": {"rule": "frozen"},
    "network": {"devices": ["north", "south"]},
}
RECORDS = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a server and two devices, with all that a start needs."""
    folder = tmp_path_factory.mktemp("made")
    write_parties(folder, CONFIG, RECORDS, free_port())
    return folder


@pytest.fixture
def town(made: Path, tmp_path: Path) -> Path:
    """A copy of these files for one test."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def dpzv(*arguments: object) -> tuple[int, str, str]:
    """Run the command line inside this process: exit code, standard output and standard error."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["dpzv", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue(), err.getvalue()


def file_of(town: Path, name: str) -> Path:
    return town / name / f"{name}.toml"


def change(path: Path, **values: Any) -> None:
    """Change keys of a TOML file; a mapping changes keys of that section."""
    tree = tomllib.loads(path.read_text())
    for key, value in values.items():
        tree[key] = {**tree.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(tomli_w.dumps(tree))


def agree(**values: Any) -> Callable[[Path], None]:
    """Change the agreed run at every party."""

    def spoil(town: Path) -> None:
        for name in ("server", "north", "south"):
            change(town / name / "run.toml", **values)

    return spoil


def own(name: str, **values: Any) -> Callable[[Path], None]:
    """Change a party's own file."""
    return lambda town: change(file_of(town, name), **values)


def put(path: str, content: bytes = b"", mode: int = 0o600) -> Callable[[Path], None]:
    """Put a file into a party's folder."""

    def spoil(town: Path) -> None:
        (town / path).parent.mkdir(exist_ok=True)
        (town / path).write_bytes(content)
        (town / path).chmod(mode)

    return spoil


def seen(*folders: Path) -> dict[Path, bytes]:
    """Every file below these folders with its content."""
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_a_party_that_may_start_is_told_so_and_nothing_is_left_behind(town: Path) -> None:
    state = Path(os.environ["XDG_STATE_HOME"])
    before = seen(town, state)
    for name in ("server", "north", "south"):
        code, out, err = dpzv("check", town / name / "run.toml", file_of(town, name))
        assert (code, err) == (0, ""), err
        assert "The agreed run of 2 devices: north, south." in out
        assert f"has {RECORDS} records; if all parties share all of them, 240 are trained on" in out
        assert "Nothing here would be refused" in out
    assert seen(town, state) == before
    assert not any((town / name / "out").exists() for name in ("server", "north", "south"))


@pytest.mark.parametrize(
    ("name", "spoil", "code", "words"),
    [
        ("north", agree(runtime={"accelerator": "cuda"}), 2, "torch finds no CUDA device"),
        ("server", agree(runtime={"accelerator": "cuda"}), 2, "torch finds no CUDA device"),
        ("north", agree(devices={"embedding": [4, 4, 4]}), 2, "devices.embedding lists 3 values for 2 devices"),
        ("server", agree(train={"eta_m": [0.1]}), 2, "train.eta_m lists 1 values for 2 devices"),
        ("south", agree(devices={"model": "mlp", "start": "dp-pca"}), 2, "start 'dp-pca' needs devices.model"),
        ("north", agree(devices={"start": "weights", "weights": "none"}), 3, "the file 'none' does not exist"),
        ("north", agree(devices={"model": "cnn"}), 2, "the cnn takes strips of 28 columns, got 2"),
        ("north", agree(devices={"embedding": MOST_NUMBERS + 1}), 2, "an embedding has at most"),
        ("server", agree(head={"model": "sum"}), 2, "set devices.embedding to 2"),
        ("server", agree(head={"base": [0.5, 0.2, 0.3]}), 2, "head.base"),
        ("server", agree(train={"B": 256}), 2, "train.B must be at most the number of records 240, got 256"),
        ("north", agree(train={"B": 256}), 2, "train.B must be at most the number of records 240, got 256"),
        ("north", agree(head={"rule": "sgd"}), 4, "sgd"),
        ("server", agree(privacy={"parents": ["x"]}), 2, "set `parents` in the server's file"),
        ("server", own("server", parents=["before"]), 4, "must be the ledger of a run, but there is none"),
        ("server", own("server", listen="0.0.0.0"), 2, "must be host:port, with a port from 0 to 65535"),
        ("server", own("server", listen="0.0.0.0:99999"), 2, "got '0.0.0.0:99999'"),
        ("server", own("server", metrics="127.0.0.1"), 2, "`metrics` in "),
        ("north", own("north", server="airline.example"), 2, "`server` in "),
        ("north", own("north", server="airline.example:0"), 2, "a port from 1 to 65535"),
        ("north", own("north", server_name="no name"), 2, "no name"),
        ("server", own("server", out="own.csv/run"), 6, "own.csv is no folder"),
        ("north", own("north", out="own.csv/run"), 6, "own.csv is no folder"),
        ("north", lambda town: (town / "north" / "keys" / "north.key").unlink(), 3, "north.key is missing"),
        ("north", lambda town: (town / "north" / "keys" / "north.key").chmod(0o644), 2, "chmod 600"),
        ("south", lambda town: (town / "south" / "keys" / "alignment.key").unlink(), 3, "alignment.key is missing"),
        ("server", put("server/keys/ca.crl", b"junk"), 3, "ca.crl"),
        ("server", put("server/own.csv", b"id,y\nrecord-0,a\nrecord-1,c\n"), 3, "the first in line 3"),
        ("north", put("north/own.csv", b"id,u\nrecord-0,1\n"), 2, "has no column 'v'"),
        ("server", put("server/out/metrics.jsonl"), 4, "ledger.sqlite is missing"),
        ("server", put("server/out/config.toml", b"[train]\nrounds = 9\n"), 2, "began with"),
        ("server", put("server/out/alignment.safetensors", b"junk"), 3, "is not the alignment of this run"),
        ("north", put("north/out/state.safetensors", b"junk"), 3, "is not the state of this device"),
    ],
)
def test_what_a_start_would_be_refused_for_is_refused_by_the_party_alone(
    town: Path, name: str, spoil: Callable[[Path], object], code: int, words: str
) -> None:
    spoil(town)
    before = seen(town)
    found, _, err = dpzv("check", file_of(town, name))
    assert words in err
    assert found == code, err
    assert err.startswith("dpzv: ")
    assert seen(town) == before


def test_what_the_records_show_is_told_before_keys_are_missed(town: Path) -> None:
    """A newcomer looks at the data first; keys are made last."""
    agree(devices={"embedding": 1})(town)
    for name in ("server", "north"):
        shutil.rmtree(town / name / "keys")
        code, out, err = dpzv("check", file_of(town, name))
        assert code == 3
        assert f"{name}.crt is missing" in err
        assert f"The file has {RECORDS} records." in out
        assert "Nothing here would be refused" not in out
    assert "2 encoded columns become 1 numbers a record" in out
    assert "devices.embedding = 2 would keep them all" in out
    assert "lie outside -2 to 2 and are clipped" in out


def test_a_device_logs_that_its_columns_are_mixed(town: Path, caplog: pytest.LogCaptureFixture) -> None:
    agree(devices={"embedding": 1})(town)
    party, rows = load_party(file_of(town, "north")), np.arange(RECORDS)
    conversation = Conversation(party.config, party.features(), DeviceFolder(party.out))
    conversation.m = 1
    with caplog.at_level(logging.INFO, "dpzv.device"):
        conversation.build(rows[:240], rows[240:], math.inf)
    assert "2 encoded columns become 1 numbers a record" in caplog.text


def test_a_port_that_is_taken_is_refused(town: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        change(file_of(town, "server"), metrics=address)
        code, _, err = dpzv("check", file_of(town, "server"))
    assert code == 5
    assert f"cannot listen on metrics = '{address}' (" in err


def test_a_folder_in_use_is_refused(town: Path) -> None:
    for name in ("server", "north"):
        with holding(town / name / "out", "the folder of a test"):
            code, _, err = dpzv("check", file_of(town, name))
            assert (code, "in use by another process" in err) == (2, True), err


def test_a_place_for_notes_is_needed_where_noise_is_secret(town: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(town / "server" / "own.csv"))
    code, _, err = dpzv("check", file_of(town, "server"))
    assert (code, "set XDG_STATE_HOME" in err) == (6, True), err
    agree(noise={"source": "seeded"})(town)
    assert dpzv("check", file_of(town, "server"))[0] == 0


def test_weights_of_another_encoding_are_refused(town: Path) -> None:
    columns = (Column(device=1, name="u", kind="range", low=0, high=1, source="x"),)
    state = DeviceState(run_id="x", columns=columns)
    write_tensors(town / "north" / "out" / "state.safetensors", {}, {"state": encoded(state)})
    code, _, err = dpzv("check", file_of(town, "north"))
    assert (code, "trained with another encoding" in err) == (2, True), err


def encoded(state: DeviceState) -> str:
    import msgspec

    return msgspec.json.encode(state).decode()


def ledger(folder: Path, *, epsilon: float = 1.0) -> None:
    """A ledger of a run on records of which nobody knows whether others have them."""
    folder.mkdir()
    plan = plan_of(parse({**CONFIG, "privacy": {"epsilon": epsilon}}), 240, 2)
    common: dict[str, Any] = {"plan": plan, "data_fingerprint": "x", "noise_source": "exact"}
    Ledger.create(folder / "ledger.sqlite", **common, ids_of=lambda m, position: (0,)).close()


def test_a_parent_that_leaves_nothing_is_refused(town: Path) -> None:
    ledger(town / "server" / "before")
    change(file_of(town, "server"), parents=["before"])
    code, _, err = dpzv("check", file_of(town, "server"))
    assert (code, "leave nothing of epsilon=1" in err) == (4, True), err
    agree(privacy={"epsilon": 3.0})(town)
    code, _, err = dpzv("check", file_of(town, "server"))
    assert (code, err) == (0, "")


@pytest.fixture
def begun(town: Path) -> Path:
    """A server's folder in which a run was opened and left again."""
    ledger(town / "server" / "out")
    assert dpzv("check", file_of(town, "server"))[0] == 0
    return town


def test_a_run_that_was_ended_is_refused(begun: Path) -> None:
    end(begun / "server" / "out")
    code, _, err = dpzv("check", file_of(begun, "server"))
    assert (code, "was ended for good" in err) == (4, True), err


def test_a_copied_folder_is_refused(begun: Path) -> None:
    shutil.copytree(begun / "server" / "out", begun / "server" / "copy")
    change(file_of(begun, "server"), out="copy")
    code, _, err = dpzv("check", file_of(begun, "server"))
    assert (code, "is a copy of" in err) == (4, True), err


def test_a_restored_folder_is_refused(begun: Path) -> None:
    out = begun / "server" / "out"
    shutil.copytree(out, begun / "backup")
    plan = plan_of(parse(CONFIG), 240, 2)
    common: dict[str, Any] = {"plan": plan, "data_fingerprint": "x", "noise_source": "exact"}
    Ledger.open(out / "ledger.sqlite", **common, ids_of=lambda m, position: (0,)).close()
    assert dpzv("check", file_of(begun, "server"))[0] == 0
    shutil.rmtree(out)
    shutil.copytree(begun / "backup", out)
    code, _, err = dpzv("check", file_of(begun, "server"))
    assert (code, "is a copy or a restored backup" in err) == (4, True), err


def test_an_agreed_run_is_checked_by_itself_and_against_the_parties(town: Path) -> None:
    run = town / "agreed.toml"
    run.write_text(tomli_w.dumps(CONFIG))
    assert dpzv("check", run)[0] == 0
    change(run, train={"B": 32, "rounds": 9})
    assert dpzv("check", run, file_of(town, "north"))[0] == 4  # a batch of 32 is below privacy.min_batch
    change(run, train={"B": 128})
    code, _, err = dpzv("check", run, file_of(town, "north"), file_of(town, "south"))
    assert code == 2
    assert (
        err.count("all parties must have one agreed run, but train.rounds = 9, got 8 and train.B = 128, got 64 in") == 2
    )
    for key, value, words in (
        ("network", {"devices": []}, "network.devices must name each device once"),
        ("data", {"holdout": 0.0}, "data.holdout"),
        ("head", {"rule": "sgd"}, "sgd"),
        ("devices", {"hidden": [1, 2, 3]}, "devices.hidden lists 3 values"),
    ):
        run.write_text(tomli_w.dumps({**CONFIG, key: {**CONFIG[key], **value}}))
        code, _, err = dpzv("check", run)
        assert code in (2, 4)
        assert words in err


def test_odd_values_are_shown_to_the_party_alone(town: Path) -> None:
    path = file_of(town, "north")
    tree = tomllib.loads(path.read_text())
    sex = {"name": "v", "kind": "category", "values": ["Male", "Female"], "source": "made up"}
    tree["data"]["features"]["columns"][1] = sex
    path.write_text(tomli_w.dumps(tree))
    lines = ["id;u;v", *(f"record-{i};{i / 300};{'male' if i % 3 == 0 else 'Male'}" for i in range(RECORDS))]
    (town / "north" / "own.csv").write_text("\n".join(lines))
    code, out, _ = dpzv("check", path)
    assert code == 0
    assert "own.csv is read as values separated by ';'" in out
    assert "do not pass it on" in out
    assert "column 'v': 100 of 300 values, the first in lines 2, 5 and 8, are not listed and become zeros: " in out
    assert "'male' (100, perhaps 'Male')" in out
    assert "Nothing is odd about u." in out
    with logged("dpzv.device") as told:
        load_party(path).features()
    assert len(told) == 2
    assert "read as values separated by ';'" in told[0]
    assert "100 of 300 values" in told[1]
    assert "male" not in told[1].lower()


@contextlib.contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """What is logged inside the block."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield told
    finally:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (agree(train={"B": 256}), ConfigError, "got 256"),
        (agree(head={"model": "sum"}), ConfigError, "set devices.embedding to 2"),
        (agree(runtime={"accelerator": "cuda"}), ConfigError, "CUDA"),
        (agree(head={"rule": "sgd"}), PrivacyRefused, "sgd"),
        (own("server", parents=["before"]), PrivacyRefused, "but there is none"),
    ],
)
def test_a_server_refuses_at_its_start_and_not_when_all_devices_have_come(
    town: Path, spoil: Callable[[Path], None], kind: type[DpzvError], words: str
) -> None:
    spoil(town)
    party = load_party(file_of(town, "server"))
    started: list[object] = []
    with pytest.raises(kind, match=words):
        asyncio.run(asyncio.wait_for(serve(party, RunFolder.of_run(party.out, party.config), started.append), 60))
    assert started == []  # it never listened


def test_ids_that_are_not_utf_8_are_one_sentence(town: Path) -> None:
    (town / "ids.txt").write_bytes("é\n".encode("latin-1"))
    code, _, err = dpzv("predict", file_of(town, "server"), "--ids", town / "ids.txt", "--out", town / "p.csv")
    assert (code, "ids.txt must be text in UTF-8, got other bytes at place 0; save it" in err) == (2, True), err
