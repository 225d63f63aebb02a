"""Start a run in a new folder, or resume one: the glue between configuration, data, ledger and simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import torch

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.data.dataset import Dataset, check
from dpzv.data.schedule import BatchSchedule
from dpzv.errors import PrivacyRefused
from dpzv.privacy.ledger import BatchIds, Ledger
from dpzv.privacy.noise import ExactNoise, NoiseSource, SeededNoise
from dpzv.privacy.plan import PrivacyPlan, private_starts, start_event
from dpzv.rng import seed_of
from dpzv.runtime import checkpoint
from dpzv.runtime.build import Parts, assemble, plan_of
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.gate import Gate
from dpzv.runtime.journal import Observer
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation
from dpzv.terms import NoiseSourceName

__all__ = ["Networks", "load_data", "make_ledger", "make_noise", "open_ledger", "resume", "run", "start"]

Networks = Callable[[PrivacyPlan, NoiseSource], list[torch.nn.Module]]
"""Makes the devices' networks once the plan is known, since a private start needs its noise."""


def start(config: Config, path: Path, observe: Observer, max_seconds: float) -> dict[str, Any] | None:
    """Run `config` in the new folder `path`; see `Simulation.run` for what comes back."""
    data = load_data(config)
    return run(config, data, _networks(config, data), path, observe, max_seconds)


def resume(path: Path, observe: Observer, max_seconds: float) -> dict[str, Any] | None:
    """Continue the run of folder `path` from its last checkpoint; a finished one gives its summary."""
    folder = RunFolder.existing(path)
    if folder.finished:
        return folder.read_summary()
    config = configuration.parse(msgspec.toml.decode((path / "config.toml").read_bytes()))
    data = load_data(config)
    noise, plan = make_noise(config), plan_of(config, len(data.y_train), len(data.x_train))
    parts = assemble(config, data, make_networks(config, data, plan, noise), plan, noise)
    return _simulate(config, data, plan, parts, noise, folder, observe, max_seconds)


def run(
    config: Config,
    data: Dataset,
    networks: Networks,
    path: Path,
    observe: Observer,
    max_seconds: float = float("inf"),
) -> dict[str, Any] | None:
    """Run `config` on any data and networks, in the new folder `path`."""
    check(data)
    noise, plan = make_noise(config), plan_of(config, len(data.y_train), len(data.x_train))
    parts = assemble(config, data, networks(plan, noise), plan, noise)  # refuse before anything is written
    folder = RunFolder.create(path, configuration.render(config))
    return _simulate(config, data, plan, parts, noise, folder, observe, max_seconds)


def load_data(config: Config) -> Dataset:
    """The records that a configuration names."""
    asked = config.data
    return catalogue.load(
        asked.name,
        asked.path,
        asked.columns,
        encoder=asked.encoder,
        tokens=asked.tokens,
        holdout=asked.holdout,
    )


def _networks(config: Config, data: Dataset) -> Networks:
    return lambda plan, noise: make_networks(config, data, plan, noise)


def _simulate(
    config: Config,
    data: Dataset,
    plan: PrivacyPlan,
    parts: Parts,
    noise: NoiseSource,
    folder: RunFolder,
    observe: Observer,
    max_seconds: float,
) -> dict[str, Any] | None:
    with make_ledger(config, data, plan, folder) as ledger, folder:
        if ledger.plan.z != plan.z:
            raise PrivacyRefused(
                f"the run began with head noise z={ledger.plan.z!r}, the installed accountant gives {plan.z!r}; "
                "resume with the versions in its summary's `versions`, or start a new run."
            )
        for m in private_starts(ledger.plan):
            ledger.charge(start_event(ledger.plan, m))
        simulation = Simulation(config, data, parts, Gate(ledger, noise), folder, plan.T)
        simulation.restore()
        return simulation.run(observe, max_seconds)


def make_noise(config: Config) -> NoiseSource:
    """The noise source of a configuration."""
    if config.noise.source == "exact":
        return ExactNoise()
    # devices know the run's seed; this stream is named apart, but whoever knows the seed can make it too
    return SeededNoise(seed_of(config.train.seed, "noise"))


def make_ledger(config: Config, data: Dataset, plan: PrivacyPlan, folder: RunFolder) -> Ledger:
    """The ledger of a run folder: a new one, or the one that is there."""
    return open_ledger(config, data.fingerprint, plan, folder)


def open_ledger(config: Config, fingerprint: str, plan: PrivacyPlan, folder: RunFolder) -> Ledger:
    """As `make_ledger`, for records that are known by their fingerprint only."""
    schedules = [BatchSchedule(config.train.seed, m, plan.B, plan.D) for m in range(1, plan.M + 1)]
    path = folder.path / "ledger.sqlite"
    known = checkpoint.rounds(folder.checkpoint)
    common = _LedgerArguments(
        plan=plan,
        data_fingerprint=fingerprint,
        noise_source=config.noise.source,
        ids_of=lambda m, position: schedules[m - 1].ids(position),
        durable=config.noise.source == "exact",
    )
    if known is None and not path.exists():  # nothing was ever released: a release needs both
        return Ledger.create(path, **common)
    return Ledger.open(path, **common, at_least=known or 0)


class _LedgerArguments(TypedDict):
    plan: PrivacyPlan
    data_fingerprint: str
    noise_source: NoiseSourceName
    ids_of: BatchIds
    durable: bool
