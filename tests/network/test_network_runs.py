"""A run between parties, in memory or over TLS, is the run that one process would simulate."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from federation import NAMES, Parties, config_of, serving
from numpy.typing import NDArray
from safetensors.torch import load_file

from dpzv.config import Config
from dpzv.network.memory_transport import MemoryListener
from dpzv.network.wire import ListPiece, Rows, Welcome
from dpzv.privacy.ledger_checks import RECEIPT_BYTES
from dpzv.privacy.plan import PlanRequest, PrivacyPlan, request_of
from dpzv.privacy.planning import make_plan
from dpzv.privacy.statement import read_ledger, spent
from dpzv.protocol import device
from dpzv.protocol.messages import Fill
from dpzv.runtime import run_plan
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import run


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


def in_one_process(
    parties: Parties, config: Config, out: Path, parents: tuple[str, ...] = (), fingerprint: str = ""
) -> dict[str, Any]:
    """The simulation of the same run, by its summary."""
    change = msgspec.structs.replace
    runtime, privacy = change(config.runtime, kind="simulate"), change(config.privacy, parents=parents)
    alone = change(config, runtime=runtime, privacy=privacy)
    data = parties.simulated(config.data.holdout)
    if fingerprint:
        data = dataclasses.replace(data, fingerprint=fingerprint)
    make = lambda *rest: make_networks(alone, data, *rest)  # noqa: E731
    summary = run(alone, data, make, out, lambda snapshot: True, math.inf)
    assert summary is not None
    return summary


def equals_the_simulation(parties: Parties, config: Config, folder: Path, *, rounds: int, tls: bool) -> None:
    """Run `config` over a network and in one process, and compare what was released and measured."""
    together = parties.together_over_tls if tls else parties.together
    networked = asyncio.run(asyncio.wait_for(together(config, folder), 100))
    assert networked is not None
    simulated = in_one_process(parties, config, folder / "alone")
    lines = [(folder / name / "transcript.jsonl").read_text() for name in ("server", "alone")]
    assert lines[0].count("\n") == rounds
    assert lines[0] == lines[1]
    networked["bytes_down"] -= rounds * RECEIPT_BYTES  # which come with the releases of a network only
    for name in (
        "test_accuracy",
        "test_loss",
        "bytes_up",
        "bytes_down",
        "bytes_initial",
        "payload_bytes",
        "epsilon",
        "untrained",
    ):
        assert networked[name] == simulated[name], name
    assert networked["untrained"]["bytes_up"] == networked["bytes_initial"]


@pytest.mark.parametrize("method", ["dpzv", "vafl"])
@pytest.mark.parametrize(("rule", "tls"), [("frozen", False), ("dp-sgd", False), ("dp-sgd", True)])
def test_the_transcript_is_that_of_the_simulation(
    parties: Parties, tmp_path: Path, method: str, rule: str, tls: bool
) -> None:
    config = config_of(f"train.method={method}", "privacy.protects=labels", f"head.rule={rule}", "head.steps=20")
    equals_the_simulation(parties, config, tmp_path, rounds=40, tls=tls)
    for m, name in enumerate(NAMES, 1):
        one = load_file(tmp_path / name / "weights" / f"device-{m}.safetensors")
        other = load_file(tmp_path / "alone" / "weights" / f"device-{m}.safetensors")
        assert all(torch.equal(one[key], other[key]) for key in other)


def test_a_batch_that_nobody_set_is_the_same_at_all_parties(parties: Parties, tmp_path: Path) -> None:
    """Fewer records are trained on than a batch would have: server and devices take all of them."""
    change, config = msgspec.structs.replace, config_of("data.holdout=0.7", "train.rounds=8", "head.rule=frozen")
    config = change(config, train=change(config.train, B=None))
    equals_the_simulation(parties, config, tmp_path, rounds=8, tls=False)
    plan = read_ledger(tmp_path / "server").plan
    assert plan.B == plan.D < 512


@pytest.mark.parametrize("tls", [False, True])
def test_several_directions_a_message_are_those_of_the_simulation(parties: Parties, tmp_path: Path, tls: bool) -> None:
    config = config_of("train.directions=4", "codec.name=int8", "head.rule=joint-zo", "train.rounds=12")
    equals_the_simulation(parties, config, tmp_path, rounds=12, tls=tls)


def test_a_head_that_adds_with_whitened_devices_is_that_of_the_simulation(parties: Parties, tmp_path: Path) -> None:
    """Counts of labels, whitening and weights are kept where they belong, and predictions use them."""
    whitened = ("devices.model=linear", "devices.start=dp-whiten", "devices.R=8", "devices.embedding=10")
    adds = ("head.model=sum", "head.rule=frozen", "head.final=private", "head.base=count", "privacy.epsilon=8")
    config = config_of(*whitened, *adds)
    assert asyncio.run(asyncio.wait_for(parties.together(config, tmp_path), 100)) is not None
    in_one_process(parties, config, tmp_path / "alone")
    lines = [(tmp_path / name / "transcript.jsonl").read_text() for name in ("server", "alone")]
    assert lines[0] == lines[1]
    total = load_file(tmp_path / "server" / "weights" / "server.safetensors")["base"]
    assert total.std() > 0  # noisy log-frequencies
    for m, (name, features) in enumerate(zip(NAMES, parties.features, strict=True), 1):
        w = load_file(tmp_path / name / "weights" / f"device-{m}.safetensors")
        rows = [int((features.hashes == one).all(axis=1).argmax()) for one in parties.labels.hashes[:2]]
        columns = (torch.from_numpy(features.x[rows]) - w["mean"]) @ w["matrix"]
        total = total + columns @ w["linear.weight"].T + w["linear.bias"]
    torch.testing.assert_close(asyncio.run(parties.predicted(config, tmp_path)), total, rtol=1e-3, atol=1e-4)


def test_an_earlier_run_on_the_records_counts_as_spent(parties: Parties, tmp_path: Path) -> None:
    """Devices have no ledgers: the server tells each what its private start may cost, and never a fingerprint."""
    starts = ("devices.model=linear", "devices.start=dp-pca", "devices.R=8", "head.rule=frozen", "privacy.epsilon=8")
    first = config_of(*starts, "privacy.epsilon=4", "train.seed=1")
    assert asyncio.run(parties.together(first, tmp_path / "first")) is not None
    second, parents = config_of(*starts), (str(tmp_path / "first" / "server"),)
    child = asyncio.run(parties.together(second, tmp_path / "second", parents))
    assert child is not None
    free = asyncio.run(parties.together(second, tmp_path / "free"))
    assert free is not None
    assert child["epsilon"] == free["epsilon"] == 8
    assert child["sigma_dp"] > 1.05 * free["sigma_dp"]
    assert spent([tmp_path / "second" / "server"]).epsilon == 8

    fingerprint = read_ledger(tmp_path / "first" / "server").data_fingerprint
    in_one_process(parties, second, tmp_path / "alone", parents, fingerprint)
    lines = [(tmp_path / place / "transcript.jsonl").read_text() for place in ("second/server", "alone")]
    assert lines[0] == lines[1]  # so the devices' starts had the larger noise, too
    assert lines[0] != (tmp_path / "free" / "server" / "transcript.jsonl").read_text()


def test_a_run_that_shares_ids_costs_in_full_and_one_that_shares_none_nothing(parties: Parties, tmp_path: Path) -> None:
    """Ids under one key are compared; half of the records trained first, then all of them, then the other half."""
    settings = ("head.rule=frozen", "train.rounds=4", "train.B=64")
    half = [parties.labels.hashes[:, 0] % 2 == part for part in (0, 1)]

    def compared(name: str, chosen: NDArray[np.bool_], *earlier: str) -> tuple[int | None, float]:
        """How many records the run shares with the earlier one, and its noise over that of a run without parents."""
        own, all_labels = copy.copy(parties), parties.labels
        hashes, y = all_labels.hashes[chosen], all_labels.y[chosen]
        own.labels = dataclasses.replace(all_labels, hashes=hashes, y=y, key="the key")
        folders = tuple(str(tmp_path / folder / "server") for folder in earlier)
        config = config_of(*settings, f"privacy.epsilon={8 if earlier else 4}")
        assert asyncio.run(own.together(config, tmp_path / name, folders)) is not None
        plan = read_ledger(tmp_path / name / "server").plan
        free = make_plan(request_of(msgspec.structs.replace(plan, parents=())))
        return plan.parents[0].shared if plan.parents else -1, plan.sigma_dp / free.sigma_dp

    assert compared("first", half[0]) == (-1, 1.0)
    D = read_ledger(tmp_path / "first" / "server").plan.D
    shared, factor = compared("whole", half[0] | half[1], "first")
    assert shared is not None
    assert 0 < shared < D  # test records of one run are training records of the other
    assert factor > 1.1
    assert compared("rest", half[1], "first") == (0, 1.0)


def test_only_who_adds_noise_calibrates_it(parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a device whose start takes no noise, nor a prediction."""
    made, plan = [], run_plan.make_plan

    def counted(request: PlanRequest) -> PrivacyPlan:
        made.append(request)
        return plan(request)

    def welcomed(config: Config, folder: str) -> int:
        """How many plans a device makes until it is ready."""
        before, talk = len(made), parties.device(config, 1, tmp_path / folder).conversation
        rows = np.arange(1024) % 512
        for message in (Welcome(1, "0" * 32, "train", False), Rows(512, 512), ListPiece(0, rows.tobytes())):
            assert list(talk.answers(message)) == []
        assert talk.device is not None
        return len(made) - before

    config = config_of("head.rule=frozen", "train.rounds=8")
    asyncio.run(asyncio.wait_for(parties.together(config, tmp_path), 60))
    monkeypatch.setattr(run_plan, "make_plan", counted)
    assert asyncio.run(parties.predicted(config, tmp_path, 5)).shape == (5, 10)
    assert made == []
    assert welcomed(config, "random") == 0
    starts = ("devices.model=linear", "devices.start=dp-pca", "devices.R=8", "privacy.epsilon=8")
    assert welcomed(config_of("head.rule=frozen", *starts), "private") == 1
    uplink = ("train.method=zoo-vfl", "noise.where=uplink", "privacy.C_h=1", "head.rule=zo")
    assert welcomed(config_of(*uplink), "uplink") == 1


def test_a_first_fill_goes_on_where_the_link_was_lost(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent twice, and the run is the simulated one."""
    monkeypatch.setattr(device, "CHUNK", 200)
    whole, began, listener = device.Device.fill, [], MemoryListener(NAMES)

    def cut_short(self: device.Device, first: int = 0) -> Iterator[Fill]:
        if self.m == 2:
            began.append(first)
        for number, chunk in enumerate(whole(self, first)):
            if self.m == 2 and number == 2 and len(began) == 1:
                listener.cut(NAMES[1])  # the two chunks before have arrived
            yield chunk

    async def together() -> dict[str, Any] | None:
        async with serving(parties.server(config, tmp_path / "server"), listener) as finished:
            return await parties.finish(config, tmp_path, finished, listener.connector)

    monkeypatch.setattr(device.Device, "fill", cut_short)
    config = config_of("head.rule=frozen")
    networked = asyncio.run(asyncio.wait_for(together(), 100))
    assert networked is not None
    assert began == [0, 400]
    simulated = in_one_process(parties, config, tmp_path / "alone")
    lines = [(tmp_path / name / "transcript.jsonl").read_text() for name in ("server", "alone")]
    assert lines[0] == lines[1]
    assert networked["bytes_initial"] == simulated["bytes_initial"]
