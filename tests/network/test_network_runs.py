"""A run between parties over TLS is the run that one process would simulate."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import msgspec
import pytest
import torch
from federation import NAMES, Parties, config_of
from safetensors.torch import load_file

from dpzv.runtime.networks import make_networks
from dpzv.runtime.run import run


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.made(tmp_path_factory.mktemp("parties"))


@pytest.mark.parametrize("method", ["dpzv", "vafl"])
@pytest.mark.parametrize("rule", ["frozen", "dp-sgd"])
def test_the_transcript_is_that_of_the_simulation(parties: Parties, tmp_path: Path, method: str, rule: str) -> None:
    config = config_of(f"train.method={method}", "privacy.protects=labels", f"head.rule={rule}", "head.steps=20")
    networked = asyncio.run(asyncio.wait_for(parties.together(config, tmp_path), 100))
    assert networked is not None
    alone = msgspec.structs.replace(config, runtime=msgspec.structs.replace(config.runtime, kind="simulate"))
    data = parties.simulated(0.2)
    simulated = run(
        alone,
        data,
        lambda *rest: make_networks(alone, data, *rest),
        tmp_path / "alone",
        lambda snapshot: True,
        math.inf,
    )
    assert simulated is not None
    lines = [(tmp_path / name / "transcript.jsonl").read_text() for name in ("server", "alone")]
    assert lines[0].count("\n") == 40
    assert lines[0] == lines[1]
    for name in ("test_accuracy", "test_loss", "bytes_up", "bytes_down", "bytes_initial", "payload_bytes", "epsilon"):
        assert networked[name] == simulated[name], name
    for m, name in enumerate(NAMES, 1):
        one = load_file(tmp_path / name / "weights" / f"device-{m}.safetensors")
        other = load_file(tmp_path / "alone" / "weights" / f"device-{m}.safetensors")
        assert all(torch.equal(one[key], other[key]) for key in other)
