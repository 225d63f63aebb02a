"""`dpzv show weights`: a scorecard of linear devices, in a run folder and in a device's own."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from dpzv.data.columns import Column
from dpzv.durable import write_tensors
from dpzv.network.device_folder import DeviceState
from tests.cli.conftest import Cli

COLUMNS = (
    Column(device=1, name="age", kind="range", low=20.0, high=70.0, missing=True, source="Adults at work."),
    Column(device=1, name="home", kind="category", values=("own", "rent"), other=True, source="The form."),
    Column(device=1, name="income", kind="knots", knots=(0.0, 1e4), source="The form."),
    Column(device=1, name="phone", kind="flag", source="The form."),
)


def device_folder(path: Path) -> None:
    """The folder of a networked device with two outputs, whose whitening doubles every column and shifts it by 1."""
    weight = torch.zeros(2, 8)
    weight[0] = torch.tensor([0.25, 0.0, 1.0, -2.0, 0.0, 0.0, 0.5, 3.0])
    weight[1, 7] = -1.0
    tensors = {"linear.weight": weight, "linear.bias": torch.zeros(2), "mean": torch.ones(8)}
    write_tensors(path / "weights" / "device-2.safetensors", tensors | {"matrix": 2 * torch.eye(8)}, {})
    state = DeviceState(run_id="r", columns=COLUMNS, finished=True)
    write_tensors(path / "state.safetensors", {}, {"state": json.dumps({**_plain(state)})})


def _plain(state: DeviceState) -> dict[str, object]:
    import msgspec

    found: dict[str, object] = msgspec.json.decode(msgspec.json.encode(state))
    return found


def test_a_device_reads_its_own_weights_by_column_and_category(cli: Cli, tmp_path: Path) -> None:
    device_folder(tmp_path / "own")
    done = cli("show", "weights", "own", "--json")
    assert done.returncode == 0, done.stderr
    (card,) = json.loads(done.stdout)
    assert card["device"] == 2
    lines = {(line["column"], line["part"]): line for line in card["lines"]}
    # whitening undone: every weight is twice as large; 0.5 on -1 .. 1 is 0.02 a year between 20 and 70
    assert lines["age", "a unit, 20 to 70"]["weights"] == [0.02, 0.0]
    assert lines["age", "a unit, 20 to 70"]["effect"] == 1.0
    assert lines["home", "is rent"]["weights"] == [-4.0, 0.0]
    assert lines["income", "at 10000"]["weights"] == [1.0, 0.0]
    assert lines["phone", "yes"]["weights"] == [6.0, -2.0]
    assert {("age", "is missing"), ("home", "is another value"), ("income", "at 0")} <= set(lines)
    assert card["lines"][0]["column"] == "phone"
    # at 20 years the range is at -1, so 0.02 a year needs an intercept lower by 0.5 + 0.02 * 20
    assert card["intercept"] == [-2 * (0.25 + 1 - 2 + 0.5 + 3) - 0.5 - 0.4, 2.0]


def test_a_run_has_the_weights_of_all_devices(cli: Cli, tmp_path: Path) -> None:
    settings = ("--set", "train.rounds=6", "--set", "devices.embedding=1")
    assert cli("train", "breast-cancer", *settings, "--out", "run", "--quiet").returncode == 0
    done = cli("show", "weights", "run", "--device", "2")
    assert done.returncode == 0, done.stderr
    assert "Device 2" in done.stdout
    assert "Device 1" not in done.stdout
    assert "radius error" in done.stdout
    assert cli("show", "weights", "run").stdout.count("intercept") == 3
    missing = cli("show", "weights", "run", "--device", "4")
    assert missing.returncode == 2
    assert "got those of device 1, 2, 3" in missing.stderr
    none = cli("show", "weights", str(tmp_path))
    assert none.returncode == 2
    assert "got none; give the folder of a finished run" in none.stderr


def test_other_models_have_no_scorecard(cli: Cli) -> None:
    settings = ("--set", "train.rounds=0", "--set", "devices.model=mlp", "--out", "run", "--quiet")
    assert cli("train", "breast-cancer", *settings).returncode == 0
    done = cli("show", "weights", "run")
    assert done.returncode == 2
    assert "only a linear device has weights that can be read by column" in done.stderr
