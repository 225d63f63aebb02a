"""What a device saw and holds: enough to compute its part of the run again, and nothing of anybody else."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch

from dpzv import config as configuration
from dpzv.attacks.replay import Coalition
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.errors import DataError, PrivacyRefused
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.device_view import read_views
from dpzv.runtime.run import run
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

D, B = 60, 20


def data() -> Dataset:
    generator = np.random.default_rng(0)
    train, test = (Records([generator.random((n, 5)) for _ in range(2)], np.arange(n) % 2) for n in (D, 10))
    return from_arrays(train, test, task="binary")


def settings(**train: Any) -> configuration.Config:
    sections = {"head": {}, "privacy": {}, "noise": {}, "codec": {}}
    for name in list(sections):
        sections[name] = train.pop(name, {})
    tree = {
        "devices": {"embedding": 3, "model": "mlp", "hidden": 4},
        "train": {"rounds": 12, "B": B, "eta_m": 0.1, "momentum": 0.5, "eval_every": 100, **train},
        "head": {"rule": "frozen", "final": "private", **sections["head"]},
        "privacy": {"protects": "labels", "min_batch": B, **sections["privacy"]},
        "noise": {"source": "seeded", **sections["noise"]},
        "codec": sections["codec"],
    }
    return configuration.parse(tree)


def trained(folder: Path, config: configuration.Config, *, view: bool = True) -> None:
    records = data()
    run(config, records, partial(make_networks, config, records), folder, lambda _: True, record_view=view)


UPLINK = {"noise": {"where": "uplink", "source": "exact"}, "privacy": {"accounting": "paper"}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"directions": 3, "codec": {"name": "int8"}},
        {"method": "vafl"},
        {"method": "vafl", **UPLINK},
        {"method": "zoo-vfl", **UPLINK},
        {"method": "vfl-czofo"},
    ],
)
def test_a_devices_weights_follow_from_its_view_to_the_last_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    trained(tmp_path / "run", settings(**changes))
    coalition = Coalition.of(read_views(tmp_path / "run"))
    turns = list(coalition.turns())
    assert [turn.t for turn in turns] == list(range(1, 13))
    for member in coalition.members:
        kept = safetensors.torch.load_file(tmp_path / "run" / "weights" / f"device-{member.m}.safetensors")
        for name, w in member.network.state_dict().items():
            assert torch.equal(w, kept[name])


def test_a_view_holds_what_the_device_has_and_received_and_no_label(tmp_path: Path) -> None:
    trained(tmp_path / "run", settings())
    folder, records = tmp_path / "run" / "view" / "device-2", data()
    names = {"config.toml", "view.json", "held.safetensors", "received.bin"}
    assert {path.name for path in folder.iterdir()} == names
    held = safetensors.torch.load_file(folder / "held.safetensors")
    assert {name for name in held if not name.startswith("w.")} == {"x_train", "x_test"}
    assert np.array_equal(held["x_train"].numpy(), records.x_train[1])
    view = read_views(tmp_path / "run")[1]
    sent = [line.split('"') for line in (tmp_path / "run" / "transcript.jsonl").read_text().splitlines()]
    own = [float.fromhex(line[7]) for line in sent if line[4] == ":2,"]
    assert view.Delta[:, 0].tolist() == own
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_rows_are_kept_where_noise_of_the_device_is_in_them(tmp_path: Path) -> None:
    """They cannot be computed again: with secret noise two draws differ."""
    trained(tmp_path / "run", settings(method="vafl", **UPLINK))
    view = read_views(tmp_path / "run")[0]
    assert view.sent is not None
    (member,) = Coalition.of([view]).members
    first = next(member.turns())
    assert np.array_equal(first.h[0], view.sent[0][0])
    assert np.abs(first.h[0] - member.rows(view.x_train[torch.from_numpy(first.ids.copy())])).max() > 1e-3


def test_a_run_that_was_stopped_goes_on_with_its_views(tmp_path: Path) -> None:
    """It is killed after a checkpoint and some rounds more, so these are played and noted twice."""
    whole, cut, config, records = tmp_path / "whole", tmp_path / "cut", settings(), data()
    trained(whole, config)

    class Killed(Exception):
        pass

    def dies(snapshot: Any) -> bool:
        if snapshot.t == 7:
            raise Killed
        return True

    networks = partial(make_networks, config, records)
    with pytest.raises(Killed):
        run(config, records, networks, cut, dies, record_view=True)
    again = Simulation(config, records, networks, cut)
    with again.opened(RunFolder.existing(cut)):
        again.run(lambda _: True)
    for one, other in zip(read_views(whole), read_views(cut), strict=True):
        assert np.array_equal(one.Delta, other.Delta)
        assert np.array_equal(one.t, other.t)
        assert all(torch.equal(w, other.start[name]) for name, w in one.start.items())
    raw = [(folder / "view" / "device-1" / "received.bin").stat().st_size for folder in (whole, cut)]
    assert raw[1] > raw[0]


def test_views_are_kept_only_on_request_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "plain", settings(), view=False)
    with pytest.raises(DataError, match="--record-view"):
        read_views(tmp_path / "plain")
    trained(tmp_path / "run", settings())
    received = tmp_path / "run" / "view" / "device-1" / "received.bin"
    content = received.read_bytes()
    received.write_bytes(content[:-3])  # the last entry is half written
    assert len(read_views(tmp_path / "run")[0].t) == 5
    received.write_bytes(content + content[24:72])  # two rounds that were played again, and answered as before
    assert len(read_views(tmp_path / "run")[0].t) == 6
    fresh = np.frombuffer(content[24:48], np.dtype([("t", "<i8"), ("position", "<i8"), ("Delta", "<f8")])).copy()
    fresh["Delta"] += 1e-9
    received.write_bytes(content + fresh.tobytes())  # a round that was answered with fresh noise
    with pytest.raises(PrivacyRefused, match="got two different ones for its batch number 2"):
        read_views(tmp_path / "run")
    received.write_bytes(content[24:])
    with pytest.raises(DataError, match="lacks"):
        read_views(tmp_path / "run")
    received.with_name("view.json").unlink()
    with pytest.raises(DataError, match="not a view"):
        read_views(tmp_path / "run")


def test_a_private_start_without_a_budget_has_no_noise_and_no_error(tmp_path: Path) -> None:
    """With secret noise, too: nothing is drawn where the scale of the noise is 0."""
    config = settings(privacy={"epsilon": float("inf"), "protects": "records"}, noise={"source": "exact"})
    devices = msgspec.structs.replace(config.devices, model="linear", start="dp-whiten")
    trained(tmp_path / "run", msgspec.structs.replace(config, devices=devices))
    assert read_views(tmp_path / "run")[0].start
