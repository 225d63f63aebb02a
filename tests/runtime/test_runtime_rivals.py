"""Every method in a whole run: it trains, its bytes are those of its frames, and exact noise keeps its ledger."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Message
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import load_data, start
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation
from tests.runtime.short_runs import changed, run

METHODS = ("dpzv", "vafl", "zoo-vfl", "vfl-czofo")


def config_of(method: str, *assignments: str) -> Config:
    """A short run of `method` on digits."""
    return changed("digits", f"train.method={method}", *assignments)


FREE = ("privacy.epsilon=inf", "privacy.C=inf", "noise.where=downlink", "train.eval_every=1000")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dpzv", ("train.eta_m=0.02", "train.rounds=400")),
        ("zoo-vfl", ("train.eta_m=0.02", "train.rounds=400")),
        ("vafl", ("train.eta_m=0.5", "train.rounds=60", "train.momentum=0.9")),
        ("vfl-czofo", ("train.eta_m=0.02", "train.rounds=200", "train.q=32", "train.B=64")),
    ],
)
def test_devices_learn_under_a_head_that_stays(tmp_path: Path, method: str, settings: tuple[str, ...]) -> None:
    """Without noise and with a frozen head every gain is the devices' own."""
    frozen = run(config_of("dpzv", *FREE, "train.rounds=0", "head.rule=frozen"), tmp_path / "frozen")
    trained = run(config_of(method, *FREE, "head.rule=frozen", "train.momentum=0", *settings), tmp_path / "trained")
    assert trained["private_head"]["test_loss"] < frozen["private_head"]["test_loss"] - 0.1
    assert trained["method"] == method


class Counting(Codec):
    """Counts what it writes."""

    written = 0

    def encode(self, message: Message) -> bytes:
        frame = super().encode(message)
        self.written += len(frame)
        return frame


@pytest.mark.parametrize("codec", ["float32", "float16"])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_that_the_codec_wrote(tmp_path: Path, method: str, codec: str) -> None:
    config = config_of(method, "train.rounds=9", "privacy.protects=labels", "head.rule=frozen", f"codec.name={codec}")
    data = load_data(config)
    simulation = Simulation(config, data, partial(make_networks, config, data))
    codecs = tuple(Counting(codec, 1e-3, per_record=method == "vafl") for _ in data.x_train)
    with simulation.opened(RunFolder.create(tmp_path / "run", configuration.render(config))):
        simulation.server_run.codecs = codecs
        summary = simulation.run(lambda snapshot: True)
    assert summary is not None
    counted = summary["bytes_up"] + summary["bytes_down"] + summary["bytes_eval"]
    assert counted == sum(each.written for each in codecs)
    numbers = {"dpzv": 8, "zoo-vfl": 8, "vfl-czofo": 8 * 8, "vafl": 4 * 256 * 8}[method]
    assert 0 < summary["bytes_down"] / 9 - numbers < 16  # a few bytes of framing
    assert 0 < counted - summary["bytes_eval"] - summary["payload_bytes"] < 0.01 * counted + 9 * 64


@pytest.mark.parametrize("method", METHODS)
def test_exact_noise_for_labels_is_a_guarantee_and_is_stored(tmp_path: Path, method: str) -> None:
    config = config_of(method, "train.rounds=4", "privacy.protects=labels", "head.rule=frozen", "noise.source=exact")
    summary = run(config, tmp_path / "run")
    assert summary["guarantee"] is True
    assert summary["protects"] == "labels"
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "ledger.sqlite")) as connection:
        sizes = [n for (n,) in connection.execute("SELECT length(Delta) FROM releases")]
    assert sizes == [8 * {"dpzv": 1, "zoo-vfl": 1, "vfl-czofo": 8, "vafl": 256 * 8}[method]] * 4


def test_noise_on_the_uplink_reaches_the_table_and_not_the_test_records(tmp_path: Path) -> None:
    settings = ("privacy.accounting=paper", "head.rule=sgd", "noise.where=uplink", "train.rounds=4")
    noisy = run(config_of("vafl", *settings, "privacy.epsilon=0.01"), tmp_path / "noisy")
    clear = run(config_of("vafl", *settings, "privacy.epsilon=1e6"), tmp_path / "clear")
    assert noisy["test_accuracy"] < 0.5 < clear["test_accuracy"]
    assert noisy["guarantee"] is clear["guarantee"] is False


def test_a_rivals_run_resumes_where_it_was(tmp_path: Path) -> None:
    from dpzv.runtime.run import resume

    config = config_of("vafl", "privacy.protects=labels", "head.rule=frozen", "train.rounds=12", "train.momentum=0.5")
    whole = run(config, tmp_path / "whole")
    stopped = start(config, tmp_path / "cut", lambda snapshot: snapshot.t < 5, math.inf)
    assert stopped is None
    resumed = resume(tmp_path / "cut", lambda snapshot: True, math.inf)
    assert resumed is not None
    assert resumed["test_loss"] == whole["test_loss"]
    lines = [(tmp_path / name / "transcript.jsonl").read_text() for name in ("whole", "cut")]
    assert lines[0] == lines[1]
