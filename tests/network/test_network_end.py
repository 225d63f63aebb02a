"""The end of a run reaches a device that was away, and predictions use nobody's old weights."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import NAMES, Parties, config_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dpzv.errors import DiskError, PeerError
from dpzv.network import device_party, server_party
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.status import read_status
from dpzv.runtime import journal

CONFIG = config_of("head.rule=frozen", "train.rounds=24")
LATE = NAMES[1]


def lost(out: Path) -> None:
    """The second device is as it was before it ever trained."""
    (out / LATE / "state.safetensors").unlink()
    shutil.rmtree(out / LATE / "weights")


def test_a_device_that_missed_the_end_is_told_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = Parties.made(tmp_path / "parties")
    out = tmp_path / "out"
    asyncio.run(parties.together(CONFIG, out))
    weights = out / LATE / "weights" / f"device-{NAMES.index(LATE) + 1}.safetensors"
    expected = load_file(weights)
    logs = [(out / "server" / name).read_bytes() for name in ("metrics.jsonl", "transcript.jsonl", "summary.json")]
    assert all(device.told for device in read_status(out / "server").devices)

    again = tmp_path / "again"
    asyncio.run(parties.together(CONFIG, again))
    lost(again)
    with pytest.raises(PeerError, match=rf"device 2 \({LATE}\) must have weights of this run.* `dpzv server` again"):
        asyncio.run(parties.predicted(CONFIG, again))

    monkeypatch.setattr(server_party, "FAREWELL_SECONDS", 20.0)
    summary = asyncio.run(parties.together(CONFIG, again))
    assert summary is not None
    assert summary["rounds"] == 24
    assert all(device.told for device in read_status(again / "server").devices)
    found = load_file(again / LATE / "weights" / weights.name)
    assert all(torch.equal(found[name], expected[name]) for name in expected)  # every release was replayed
    ends = [(again / "server" / name).read_bytes() for name in ("metrics.jsonl", "transcript.jsonl", "summary.json")]
    assert ends[1] == logs[1]
    assert ends[0].count(b"\n") == logs[0].count(b"\n")
    assert asyncio.run(parties.predicted(CONFIG, again)).shape == (2, 10)


def test_devices_say_goodbye_before_the_final_head_is_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server dies as the fit begins; started again, it ends the run without any device, with the same figures."""
    parties, out = Parties.made(tmp_path / "parties"), tmp_path / "out"
    undisturbed = asyncio.run(parties.together(CONFIG, tmp_path / "undisturbed"))
    assert undisturbed is not None
    kept: list[bool] = []

    def dying(*_: Any) -> None:
        kept.extend(any((out / name / "weights").glob("*.safetensors")) for name in NAMES)
        raise DiskError("the machine lost power.")

    monkeypatch.setattr(server_party, "FAREWELL_SECONDS", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "refit", dying)
        with pytest.raises(DiskError):
            asyncio.run(parties.together(CONFIG, out))
    assert kept == [True] * len(NAMES)  # every device had heard the end and kept its weights
    assert not (out / "server" / "summary.json").exists()

    summary = asyncio.run(parties.server(CONFIG, out / "server").run(MemoryListener(NAMES)))
    assert summary is not None
    for name in ("rounds", "test_accuracy", "test_loss", "private_head", "bytes_up", "epsilon", "untrained"):
        assert summary[name] == undisturbed[name]
    assert asyncio.run(parties.together(CONFIG, out)) == summary  # whoever comes back is told so


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_device_can_be_stopped_while_its_server_is_silent(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody listens at the server's address, takes the connection and never says a word."""
    monkeypatch.setattr(device_party, "GOODBYE_SECONDS", 0.5)
    parties = Parties.made(tmp_path)

    async def stopped() -> float:
        device, silent = parties.device(CONFIG, 1, tmp_path / "out"), socket.create_server(("127.0.0.1", 0))
        with silent:
            task = asyncio.create_task(device.run(parties.tls_connector(NAMES[0], silent.getsockname()[1])))
            await asyncio.sleep(seconds)
            began = time.monotonic()
            device.stop()
            await asyncio.wait_for(task, 10)
            return time.monotonic() - began

    assert asyncio.run(stopped()) < 3


def test_a_prediction_from_embeddings_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    """One number of a device's weights was damaged on its disk after training."""
    parties, out = Parties.made(tmp_path / "parties"), tmp_path / "out"
    asyncio.run(parties.together(config_of("head.rule=frozen", "train.rounds=8"), out))
    state = out / LATE / "state.safetensors"
    with safe_open(state, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    name = next(name for name in tensors if name.startswith("network."))
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, state, metadata)
    with pytest.raises(PeerError, match=rf"device 2 \({LATE}\) must send finite embeddings"):
        asyncio.run(parties.predicted(config_of("head.rule=frozen", "train.rounds=8"), out))
